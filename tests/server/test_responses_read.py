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
from pymtp.server.responses.read import input_messages, read_response_request
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
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}, "input_image"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "previous_response_id"),
        ({"input": [{"type": "computer_call", "call_id": "c1"}]}, "items of type 'computer_call' are not supported"),
        ({"tools": [{"type": "custom", "name": "apply_patch"}]}, "custom"),
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
