"""Tests of the reading of bodies of /v1/responses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pymtp.chat import Chat, NamedTool
from pymtp.chat.messages import template_messages
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import GenerateRequest
from pymtp.server.message_builder import encode_thinking
from pymtp.server.responses.history import DROPPED_ITEMS
from pymtp.server.responses.read import ignored_names, input_messages, read_response_request
from pymtp.server.responses.types import ResponseRequest

TOOL = {"type": "function", "name": "ls", "description": "Lists.", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"path": "/"}'}


def read(given: Any = "a", **more: Any) -> GenerateRequest:
    request = ResponseRequest.model_validate({"model": "demo", "input": given} | more)
    body = request.model_dump(exclude_unset=True, by_alias=True)
    return read_response_request(body, input_messages(body["input"]))


def chat_of(given: Any = "a", **more: Any) -> Any:
    chat = read(given, **more).prompt
    assert isinstance(chat, Chat)
    return chat


def messages_of(given: Any, **more: Any) -> Any:
    return chat_of(given, **more).messages


def test_text_input_becomes_a_user_message() -> None:
    assert messages_of("a") == [{"role": "user", "content": "a"}]


def test_message_item_needs_no_type() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    named = {"type": "message", "role": "user", "content": "c"}
    assert messages_of([{"role": "user", "content": parts}, named]) == [
        {"role": "user", "content": "a\n\nb"},
        {"role": "user", "content": "c"},
    ]


def test_items_of_one_answer_become_one_message() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    output = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "etc"}]}
    _, answer, result = messages_of([{"role": "user", "content": "a"}, thought, said, CALL, output])
    assert (answer["reasoning_content"], answer["content"]) == ("hm", "a")
    assert answer["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"path": "/"}'}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "etc"}


def test_reasoning_after_a_call_begins_a_new_message() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
    user = {"role": "user", "content": "a"}
    roles = [message["role"] for message in messages_of([user, CALL, thought, user])]
    assert roles == ["user", "assistant", "assistant", "user"]


def test_two_assistant_messages_stay_separate() -> None:
    phases = [{"role": "assistant", "phase": phase, "content": phase} for phase in ("commentary", "final_answer")]
    assert [message["content"] for message in messages_of([*phases, {"role": "user", "content": "a"}])] == [
        "commentary",
        "final_answer",
        "a",
    ]


def test_encrypted_content_is_decoded() -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": encode_thinking("hm")}
    assert messages_of([item, {"role": "user", "content": "a"}])[0]["reasoning_content"] == "hm"


def test_system_messages_keep_their_position() -> None:
    developer = {"role": "developer", "content": "b"}
    found = messages_of([developer, {"role": "user", "content": "c"}, developer], instructions="a")
    assert [(message["role"], message["content"]) for message in found] == [
        ("system", "a"),
        ("system", "b"),
        ("user", "c"),
        ("system", "b"),
    ]


def test_function_tools_are_offered_and_hosted_tools_are_not() -> None:
    chat = chat_of(tools=[TOOL, {"type": "web_search", "search_context_size": "low"}])
    assert chat.tools == [{"type": "function", "function": {name: TOOL[name] for name in TOOL if name != "type"}}]


@pytest.mark.parametrize("name", ["mcp__files__", "mcp__files"])
def test_tool_in_a_namespace_has_a_full_name(name: str) -> None:
    body = {"tools": [{"type": "namespace", "name": name, "description": "Files.", "tools": [TOOL]}]}
    call = CALL | {"namespace": name}
    choice = {"type": "function", "name": "ls", "namespace": name}
    request = read([{"role": "user", "content": "a"}, call], tool_choice=choice, **body)
    chat = chat_of([{"role": "user", "content": "a"}, call], tool_choice=choice, **body)
    assert [tool["function"]["name"] for tool in chat.tools] == ["mcp__files__ls"]
    assert chat.messages[1]["tool_calls"][0]["function"]["name"] == "mcp__files__ls"
    assert ([tool.name for tool in request.tools], request.tool_choice) == (
        ["mcp__files__ls"],
        NamedTool("mcp__files__ls"),
    )


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "name": "ls"}, NamedTool("ls")),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "ls"}]}, "required"),
    ],
)
def test_tool_choice_is_converted(choice: Any, found: Any) -> None:
    assert read(tools=[TOOL], tool_choice=choice).tool_choice == found


def test_allowed_tools_must_be_tools_of_the_request() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "rm"}]}
    with pytest.raises(InvalidRequestError, match="no tool rm"):
        read(tools=[TOOL], tool_choice=choice)


SKIPPED = ["custom", "shell", "local_shell", "apply_patch", "mcp", "web_search", "file_search", "code_interpreter"]
SKIPPED += ["computer_use_preview", "image_generation", "web_search_2025_08_26", "something_new"]


@pytest.mark.parametrize("kind", SKIPPED)
def test_tool_that_cannot_be_called_is_skipped_and_named(kind: str) -> None:
    own = {"type": kind, "name": "x"}
    tools = [own, TOOL, {"type": "namespace", "name": "n", "tools": [own, TOOL]}]
    assert [tool["function"]["name"] for tool in chat_of(tools=tools).tools] == ["ls", "n__ls"]
    assert ignored_names({"input": "a", "tools": tools}) == [f"tools.0.{kind}", f"tools.2.tools.0.{kind}"]
    choice = {"type": kind} | ({"name": "x"} if kind == "custom" else {})
    with pytest.raises(
        InvalidRequestError, match=f"tool_choice names .* of type {kind}, which this server cannot offer"
    ):
        read(tools=tools, tool_choice=choice)
    with pytest.raises(InvalidRequestError, match=f"only tools of type {kind}"):
        read(tools=[own], tool_choice="required")


def test_tool_choice_of_a_type_that_no_tool_has_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no tool of type 'file_search'"):
        read(tools=[TOOL], tool_choice={"type": "file_search"})


def test_skipped_tools_are_left_out_of_the_allowed_ones() -> None:
    mcp = {"type": "mcp", "server_label": "s"}
    both = {"type": "allowed_tools", "mode": "auto", "tools": [mcp, {"type": "function", "name": "ls"}]}
    assert [tool.name for tool in read(tools=[mcp, TOOL], tool_choice=both).tools] == ["ls"]
    with pytest.raises(InvalidRequestError, match="only tools of type mcp"):
        read(tools=[mcp, TOOL], tool_choice=both | {"mode": "required", "tools": [mcp]})
    custom = {"type": "custom", "name": "x"}
    named = both | {"mode": "required", "tools": [{"type": "function", "name": "x"}]}
    with pytest.raises(InvalidRequestError, match="only tools of type custom"):
        read(tools=[custom, TOOL], tool_choice=named)


CALLS = [
    ({"type": "custom_tool_call", "call_id": "c", "name": "x", "input": "hi"}, "x", {"input": "hi"}),
    ({"type": "custom_tool_call", "call_id": "c", "name": "x", "namespace": 5}, "x", {"input": None}),
    ({"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}}, "local_shell", {"command": ["ls"]}),
    ({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}, "shell", {"commands": ["ls"]}),
    ({"type": "apply_patch_call", "call_id": "c", "operation": {"path": "a"}}, "apply_patch", {"path": "a"}),
    ({"type": "computer_call", "call_id": "c", "action": {"type": "wait"}}, "computer", {"type": "wait"}),
    ({"type": "tool_search_call", "arguments": {"q": 1}}, "tool_search", {"q": 1}),
    ({"type": "mcp_approval_request", "id": "m", "name": "x", "arguments": "{"}, "x", "{"),
    ({"type": "web_search_call", "id": "w", "action": {"query": "q"}}, "web_search", {"query": "q"}),
    ({"type": "file_search_call", "id": "w", "queries": ["q"]}, "file_search", {"queries": ["q"]}),
    ({"type": "code_interpreter_call", "id": "w", "code": "1"}, "code_interpreter", {"code": "1"}),
    ({"type": "image_generation_call", "id": "w", "result": "iVBO"}, "image_generation", {}),
    ({"type": "mcp_call", "id": "w", "name": "x", "arguments": "{}", "output": "o"}, "x", "{}"),
]


@pytest.mark.parametrize(("item", "name", "arguments"), CALLS, ids=[item["type"] for item, *_ in CALLS])
def test_call_of_a_tool_that_only_openai_defines_is_a_call(item: Any, name: str, arguments: Any) -> None:
    found = messages_of([{"role": "user", "content": "a"}, item])
    assert found[1]["tool_calls"][0]["function"] == {"name": name, "arguments": arguments}


RESULTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_image"}]}, "[image]"),
    ({"type": "local_shell_call_output", "id": "c", "output": "x"}, "x"),
    ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "x"}]}, '{"stdout": "x"}'),
    ({"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}, "completed"),
    ({"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}, "[image]"),
    ({"type": "tool_search_output", "tools": [{"type": "function", "name": "ls"}]}, "[tools: ls]"),
    ({"type": "tool_search_output", "tools": 5}, "[tools: ]"),
    ({"type": "mcp_approval_response", "approval_request_id": "c", "approve": False, "reason": "no"}, "denied: no"),
    ({"type": "web_search_call", "id": "c", "action": {}}, "[a result that is not in the chat]"),
    ({"type": "file_search_call", "id": "c", "queries": [], "results": [{"text": "x"}]}, "x"),
    ({"type": "code_interpreter_call", "id": "c", "outputs": [{"type": "logs", "logs": "x"}]}, "x"),
    ({"type": "image_generation_call", "id": "c", "result": "iVBO"}, "[image]"),
    ({"type": "mcp_call", "id": "c", "name": "x", "error": "bad"}, "bad"),
    (
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file", "filename": "a"}]},
        "[file: a]",
    ),
    ({"type": "function_call_output", "call_id": "c", "output": {"a": 1}}, '{"a": 1}'),
]


@pytest.mark.parametrize(("item", "content"), RESULTS, ids=[item["type"] for item, _ in RESULTS])
def test_result_of_a_tool_that_only_openai_defines_is_a_result(item: Any, content: str) -> None:
    *_, last = messages_of([{"role": "user", "content": "a"}, item])
    assert (last["role"], last["content"]) == ("tool", content)


def test_items_that_say_nothing_to_the_model_are_dropped_and_named() -> None:
    items = [{"type": kind} for kind in DROPPED_ITEMS]
    assert messages_of([*items, {"role": "user", "content": "a"}]) == [{"role": "user", "content": "a"}]
    assert messages_of(items) == [{"role": "user", "content": ""}]
    assert ignored_names({"input": items}) == [f"input.{i}.{kind}" for i, kind in enumerate(DROPPED_ITEMS)]


@pytest.mark.parametrize(
    ("fields", "thought"),
    [
        ({}, ""),
        ({"summary": None, "content": None, "encrypted_content": "gAAAA"}, ""),
        ({"summary": [{"type": "summary_text", "text": "a"}, {"type": "what", "text": "b"}]}, "a\nb"),
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "a"}]}, "a"),
    ],
)
def test_reasoning_of_any_server_is_read(fields: dict[str, Any], thought: str) -> None:
    found = messages_of([{"type": "reasoning", "id": "r", **fields}, {"role": "user", "content": "a"}])
    assert found[0].get("reasoning_content", "") == thought


def test_reference_to_an_unknown_item_leaves_a_placeholder() -> None:
    found = messages_of([{"type": "item_reference", "id": "msg_1"}, {"type": "item_reference", "id": "rs_1"}])
    assert found == [{"role": "assistant", "content": "[a message that is not stored]"}]


def test_effort_schema_and_limits_reach_the_request() -> None:
    schema = {"type": "object", "properties": {}}
    form = {"type": "json_schema", "name": "it", "schema": schema, "strict": True}
    ask = read(reasoning={"effort": "high"}, text={"format": form}, max_output_tokens=7, top_p=0.5)
    assert (ask.schema, ask.params.max_tokens, ask.params.top_p) == (schema, 7, 0.5)
    assert isinstance(ask.prompt, Chat)
    assert ask.prompt.chat_template_kwargs == {"reasoning_effort": "high", "enable_thinking": True}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input_file"),
        (
            {"input": [{"role": "system", "content": [{"type": "input_image", "image_url": "data:"}]}]},
            "only messages",
        ),
        ({"input": [{"type": "mesage", "content": "a"}]}, "items of type 'mesage' are not supported"),
        ({"background": True}, "background"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)
def test_error_names_an_unsupported_field(more: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        ResponseRequest.model_validate({"model": "demo", "input": "a"} | more)


def test_request_of_codex_is_converted() -> None:
    parts = [{"type": "input_text", "text": "skills"}, {"type": "input_text", "text": "sandbox"}]
    items = [
        {
            "type": "message",
            "id": "msg_1",
            "role": "developer",
            "content": [{"type": "input_text", "text": "be brief"}],
        },
        {"type": "message", "id": "msg_2", "role": "developer", "content": parts},
        {"type": "message", "id": "msg_3", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
    ]
    tools = [TOOL, {"type": "namespace", "name": "agents", "tools": [TOOL]}]
    tools.append({"type": "web_search", "external_web_access": False})
    more = {"store": False, "include": ["reasoning.encrypted_content"], "client_metadata": {"turn": "1"}}
    chat = chat_of(items, tools=tools, tool_choice="auto", reasoning={"summary": "auto"}, prompt_cache_key="k", **more)
    assert [tool["function"]["name"] for tool in chat.tools] == ["ls", "agents__ls"]
    # there must be only one system message, because Qwen's templates refuse a second one
    assert [(message["role"], message["content"]) for message in template_messages(chat.messages)] == [
        ("system", "be brief\n\nskills\n\nsandbox"),
        ("user", "hello"),
    ]
