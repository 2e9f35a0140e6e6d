"""Tests of the reading of bodies of /v1/messages."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pymtp.chat import Chat, NamedTool
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import GenerateRequest
from pymtp.server.message_builder import MessageBuilder, encode_thinking
from pymtp.server.messages.read import read_message_request
from pymtp.server.messages.tools import skipped_tools
from pymtp.server.messages.types import MessageRequest

USER = {"role": "user", "content": "a"}
TOOL = {"name": "ls", "description": "Lists.", "input_schema": {"type": "object"}}


def read(*messages: dict[str, Any], **more: Any) -> GenerateRequest:
    body = {"model": "demo", "max_tokens": 9, "messages": list(messages or [USER])} | more
    return read_message_request(MessageRequest.model_validate(body).model_dump(exclude_unset=True, by_alias=True))


def chat_of(*messages: dict[str, Any], **more: Any) -> Any:
    chat = read(*messages, **more).prompt
    assert isinstance(chat, Chat)
    return chat


def messages_of(*messages: dict[str, Any], **more: Any) -> Any:
    return chat_of(*messages, **more).messages


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


class Counted(str):
    """A text that counts the characters of the texts that it is appended to."""

    n_copied = 0

    def __radd__(self, before: str) -> str:
        Counted.n_copied += len(before)
        return str.__add__(before, self)


def test_many_texts_of_a_message_are_joined_at_once() -> None:
    thought, said = MessageBuilder(), MessageBuilder()
    for _ in range(100):
        thought.add_reasoning(Counted("ab"))
        said.add_text(Counted("cd"), continues=True)
    assert thought.messages == [{"role": "assistant", "content": "", "reasoning_content": "ab" * 100}]
    assert said.messages == [{"role": "assistant", "content": "cd" * 100}]
    assert Counted.n_copied == 0


def test_text_blocks_are_separated_by_blank_lines() -> None:
    user = {"role": "user", "content": [text("a"), text("b")]}
    assert messages_of(user) == [{"role": "user", "content": "a\n\nb"}]


def test_plain_text_document_is_read_with_its_title() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "c"}
    user = {"role": "user", "content": [{"type": "document", "title": "b", "source": source}]}
    assert messages_of(user) == [{"role": "user", "content": "b\n\nc"}]


def test_part_of_a_tool_result_without_text_becomes_a_placeholder() -> None:
    parts = [text("a"), {"type": "image", "source": {}}, {"type": "tool_reference", "tool_name": "ls"}]
    one = {"type": "tool_result", "tool_use_id": "t1", "content": parts}
    assert messages_of(USER, {"role": "user", "content": [one]})[1]["content"] == "a\n\n[image]\n\n[tool: ls]"


def test_search_result_and_document_of_blocks_are_read() -> None:
    found = {"type": "search_result", "title": "T", "source": "S", "content": [text("x")]}
    document = {"type": "document", "source": {"type": "content", "content": [text("y")]}}
    assert messages_of({"role": "user", "content": [found, document]})[0]["content"] == "T\n\nS\n\nx\n\ny"


def test_blocks_of_other_servers_become_calls_results_and_placeholders() -> None:
    blocks = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "url": "u"}]},
        text("a"),
        {"type": "mcp_tool_use", "id": "m1", "name": "look", "server_name": "x", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m1", "content": [text("b"), {"type": "image"}]},
        {"type": "container_upload", "file_id": "f"},
    ]
    found = messages_of(USER, {"role": "assistant", "content": blocks}, USER)
    assert [(message["role"], message["content"]) for message in found[1:-1]] == [
        ("assistant", ""),
        ("tool", '{"url": "u"}'),
        ("assistant", "a"),
        ("tool", "b\n\n[image]"),
        ("assistant", "[container_upload]"),
    ]
    calls = [call["function"] for message in found for call in message.get("tool_calls", ())]
    assert calls == [{"name": "web_search", "arguments": {"query": "q"}}, {"name": "look", "arguments": {}}]


def test_answer_that_ends_with_a_result_is_not_continued() -> None:
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    assert not read(USER, {"role": "assistant", "content": [text("a"), result]}).continue_final_message


def test_tools_that_clients_run_are_offered_with_their_schemas() -> None:
    """Anthropic's models know these schemas, so clients leave them out."""
    kinds = {
        "bash_20250124": "bash",
        "text_editor_20250728": "str_replace_based_edit_tool",
        "memory_20250818": "memory",
    }
    request = read(tools=[{"type": kind, "name": name} for kind, name in kinds.items()] + [TOOL])
    assert [tool.name for tool in request.tools] == [*kinds.values(), "ls"]
    assert [sorted(tool.parameters["required"]) for tool in request.tools[:3]] == [
        ["command"],
        ["command", "path"],
        ["command"],
    ]
    named = {"type": "tool", "name": "bash"}
    assert read(tools=[{"type": "bash_20250124", "name": "bash"}], tool_choice=named).tool_choice == NamedTool("bash")


SKIPPED: dict[str, str] = {
    "web_search_20250305": "web_search",
    "code_execution_20250825": "code_execution",
    "computer_20250124": "computer",
    "mcp_toolset": "",
    "tool_search_tool_regex_20251119": "tool_search_tool_regex",
    "bash_new": "bash",
}


def test_tools_that_cannot_be_called_are_skipped_and_named() -> None:
    tools = [{"type": kind} | ({"name": name} if name else {}) for kind, name in SKIPPED.items()]
    body = MessageRequest.model_validate(
        {"model": "demo", "max_tokens": 9, "messages": [USER], "tools": [*tools, TOOL | {"type": "function"}]}
    ).model_dump(exclude_unset=True, by_alias=True)
    assert [tool.name for tool in read_message_request(body).tools] == ["ls"]
    assert [tool.label for tool in skipped_tools(body)] == [f"tools.{i}.{kind}" for i, kind in enumerate(SKIPPED)]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "web_search"}])
def test_tool_choice_that_only_a_skipped_tool_could_answer_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequestError, match="of type web_search_20250305, which this server cannot offer"):
        read(tools=[{"type": "web_search_20250305", "name": "web_search"}], tool_choice=choice)


def test_tool_results_become_tool_messages_in_order() -> None:
    first = {"type": "tool_result", "tool_use_id": "t1", "content": "a"}
    second = {"type": "tool_result", "tool_use_id": "t2", "content": [text("b"), text("c")], "is_error": True}
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {}}]}
    found = messages_of(USER, called, {"role": "user", "content": [first, text("x"), text("y"), second]})
    assert [(message["role"], message["content"]) for message in found[2:]] == [
        ("tool", "a"),
        ("user", "x\n\ny"),
        ("tool", "b\n\nc"),
    ]
    assert [found[2]["tool_call_id"], found[4]["tool_call_id"]] == ["t1", "t2"]


def test_assistant_blocks_become_one_message() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "redacted_thinking", "data": "x"},
        text("a"),
        text("b"),
        {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "/"}},
    ]
    _, found, _ = messages_of(USER, {"role": "assistant", "content": blocks}, USER)
    function = {"name": "ls", "arguments": {"path": "/"}}
    assert found == {
        "role": "assistant",
        "reasoning_content": "hm",
        "content": "ab",
        "tool_calls": [{"id": "t1", "type": "function", "function": function}],
    }


def test_hidden_thinking_is_decoded_from_its_signature() -> None:
    block = {"type": "thinking", "thinking": "", "signature": encode_thinking("hm")}
    foreign = {"type": "thinking", "thinking": "", "signature": "Er9c/not+ours=="}
    _, mine, _, other, _ = messages_of(
        USER, {"role": "assistant", "content": [block]}, USER, {"role": "assistant", "content": [foreign]}, USER
    )
    assert (mine["reasoning_content"], other["reasoning_content"]) == ("hm", "")


def test_system_messages_keep_their_position() -> None:
    late = {"role": "system", "content": "c"}
    found = messages_of({"role": "system", "content": "b"}, USER, late, system=[text("a")])
    assert found == [
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b"},
        USER,
        late,
    ]


def test_billing_header_of_claude_code_is_not_part_of_the_prompt() -> None:
    header = text("x-anthropic-billing-header: cc_version=2.1; cch=fa690;")
    assert messages_of(USER, system=[header, text("a")])[0] == {"role": "system", "content": "a"}
    assert messages_of(USER, system=[header]) == [USER]


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "ls"}, NamedTool("ls")),
    ],
)
def test_tool_choice_is_converted(choice: dict[str, Any], found: Any) -> None:
    request = read(tools=[TOOL], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (found, True)
    function = {"name": "ls", "description": "Lists.", "parameters": {"type": "object"}}
    offered = None if found == "none" else [{"type": "function", "function": function}]
    assert chat_of(tools=[TOOL], tool_choice=choice).tools == offered


def test_parallel_tool_calls_can_be_disabled() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert read(tools=[TOOL], tool_choice=choice).parallel_tool_calls is False


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive"}, True),
    ],
)
def test_thinking_field_enables_thinking(thinking: Any, thinks: bool) -> None:
    assert chat_of(thinking=thinking).chat_template_kwargs == {"enable_thinking": thinks}


def test_effort_and_template_variables_reach_the_template() -> None:
    chat = chat_of(output_config={"effort": "low"}, chat_template_kwargs={"enable_thinking": True})
    assert chat.chat_template_kwargs == {"enable_thinking": True, "reasoning_effort": "low"}


def test_sampling_fields_reach_the_params() -> None:
    params = read(temperature=0.5, top_k=7, stop_sequences=["x"], seed=3, draft_tokens=0).params
    assert (params.max_tokens, params.temperature, params.top_k, params.stop, params.seed) == (9, 0.5, 7, ("x",), 3)
    assert params.draft_tokens == 0


def test_assistant_message_is_continued_only_if_it_is_the_last_message() -> None:
    assert read(USER, {"role": "assistant", "content": "b"}).continue_final_message
    assert not read(USER).continue_final_message


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "container_upload"}, "'container_upload' is not supported"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "'image of file' is not supported"),
        ({"type": "video"}, "'video' is not supported"),
    ],
)
def test_error_names_an_unsupported_block_type(block: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        read({"role": "user", "content": [block]})


def test_json_schema_has_the_number_ranges() -> None:
    about = MessageRequest.model_json_schema()["properties"]["max_tokens"]
    limits, no_limit = about["anyOf"]
    assert (limits["minimum"], limits["exclusiveMaximum"], no_limit["const"]) == (1, 2**31, -1)
    with pytest.raises(ValidationError, match="max_tokens"):
        read(max_tokens=0)
    assert read(max_tokens=9.0).params.max_tokens == 9


def test_request_of_claude_code_is_converted() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    more = {
        "system": [text("x-anthropic-billing-header: cc_version=2"), text("be brief") | cached],
        "tools": [TOOL | cached],
        "metadata": {"user_id": "{}"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }
    user = {"role": "user", "content": [text("today"), text("hello") | cached]}
    chat = chat_of(user, {"role": "system", "content": "agents"}, **more)
    assert [(message["role"], message["content"]) for message in chat.messages] == [
        ("system", "be brief"),
        ("user", "today\n\nhello"),
        ("system", "agents"),
    ]
    assert chat.chat_template_kwargs == {"enable_thinking": True, "reasoning_effort": "high"}
