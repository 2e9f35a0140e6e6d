"""Tests of validation errors: messages name the field as clients write it, and the expected values."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "a"}
REQUEST: dict[str, Any] = {"model": "m", "messages": [USER]}
ASKED_TEXT: dict[str, Any] = {"prompt": "a"}
ASKED_RESPONSE: dict[str, Any] = {"model": "m", "input": "a"}
VIDEO = {"type": "video_url", "video_url": {"url": "data:,"}}
TOOL = {"type": "function", "function": {"name": "f"}}
SEARCH = {"type": "web_search"}


def request_body(url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {TEXT: ASKED_TEXT, RESPONSES: ASKED_RESPONSE}.get(url, REQUEST) | body


def content(of: object, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": of}]}


def schema(of: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", **of}}


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 5


@pytest.mark.parametrize(
    ("url", "body", "param", "message"),
    [
        (TEXT, {"prompt": 5}, "prompt", "prompt must be a string or a list, not 5"),
        (TEXT, {"prompt": ["a", 5]}, "prompt[1]", "prompt[1] must be a string, not 5"),
        (TEXT, {"prompt": [1, "a"]}, "prompt[1]", "prompt[1] must be a whole number, not 'a'"),
        (TEXT, {"prompt": [[1.5]]}, "prompt[0][0]", "prompt[0][0] must be a whole number, not 1.5"),
        (TEXT, {"prompt": ""}, "prompt", "prompt must have 1 or more characters"),
        (TEXT, {"prompt": []}, "prompt", "prompt must have 1 or more entries, not 0"),
        (TEXT, {"prompt": ["a"] * 2049}, "prompt", "prompt: a request has at most 2048 prompts, not 2049"),
        (TEXT, {"prompt": [[1]] * 2049}, "prompt", "prompt: a request has at most 2048 prompts, not 2049"),
        (TEXT, {"stop": 5}, "stop", "stop must be a string or a list, not 5"),
        (TEXT, {"stop": ["a", 5]}, "stop[1]", "stop[1] must be a string, not 5"),
        (TEXT, {"stop": 65 * ["a"]}, "stop", "stop must have at most 64 entries, not 65"),
        (TEXT, {"n": 0}, "n", "n must be at least 1, not 0"),
        (TEXT, {"draft_tokens": 99}, "draft_tokens", "draft_tokens must be at most 64, not 99"),
        (TEXT, {"logit_bias": {"1": "a"}}, 'logit_bias["1"]', "must be a number or false, not 'a'"),
        (TEXT, {"logit_bias": {"x": 1}}, "logit_bias.x", "must have the form ^[0-9]{1,9}$"),
        (TEXT, {"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias", "at most 1024 pairs"),
        (TEXT, {"stream": 1}, "stream", "stream must be true or false, not 1"),
        (TEXT, {"stream": "yes " * 100}, "stream", "yes yes…"),
        (CHAT, {"messages": [5]}, "messages[0]", "messages[0] must be an object, not 5"),
        (CHAT, {"messages": [{"content": "a"}]}, "messages[0].role", "messages[0].role is missing"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is missing"),
        (CHAT, content(5), "messages[0].content", "must be a string or a list, not 5"),
        (CHAT, content([{"type": "text"}]), "messages[0].content[0].text", "is missing"),
        (CHAT, content([{"type": "text", "text": 5}]), "messages[0].content[0].text", "must be a string, not 5"),
        (
            CHAT,
            content([VIDEO]),
            "messages[0].content[0]",
            "'video_url' is not supported: a message has text",
        ),
        (CHAT, content([{"type": "image_url"}]), "messages[0].content[0].image_url", "is missing"),
        (CHAT, content([{"type": "x"}]), "messages[0].content[0].type", "'text', 'image_url', 'input_image', not 'x'"),
        (CHAT, {"tool_choice": "any"}, "tool_choice", "'auto', 'none' or 'required' or an object, not 'any'"),
        (CHAT, {"tool_choice": {"type": "function"}}, "tool_choice.function", "tool_choice.function is missing"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function", "tools[0].function is missing"),
        (CHAT, {"response_format": {}}, "response_format.type", "response_format.type is missing"),
        (CHAT, schema({}), "response_format.json_schema", "response_format.json_schema is missing"),
        (CHAT, schema({"json_schema": {}}), "response_format.json_schema.schema", "is missing"),
        (CHAT, schema({"json_schema": {"schema": 5}}), "response_format.json_schema.schema", "an object, not 5"),
        (CHAT, {"modalities": nested(30)}, "modalities[0]", "modalities[0] must be 'text', not a list"),
        (RESPONSES, {"background": True}, "background", "background must be false, not true"),
        (RESPONSES, {"input": [5]}, "input[0]", "input[0] must be an object, not 5"),
        (RESPONSES, {"input": [{"role": "user"}]}, "input[0].content", "input[0].content is missing"),
        (RESPONSES, {"tools": [{"type": 5}]}, "tools[0].type", "must be 'function', not 5"),
        (RESPONSES, {"tools": [{}]}, "tools[0].type", "tools[0].type is missing"),
        (RESPONSES, {"tool_choice": SEARCH}, "tool_choice", "the request has no tool of type 'web_search'"),
        (RESPONSES, {"tool_choice": "any"}, "tool_choice", "'auto', 'none' or 'required' or an object, not 'any'"),
        (CHAT, {"tool_choice": "required"}, "tool_choice", "there are no tools"),
        (CHAT, {"tool_choice": TOOL}, "tool_choice", "names 'f', but the request has no tools"),
        (
            CHAT,
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "names 'g', which is none of the tools: f",
        ),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice", "there are no tools"),
        (
            RESPONSES,
            {"tools": [SEARCH], "tool_choice": "required"},
            "tool_choice",
            "the request has only tools of type web_search",
        ),
    ],
)
def test_validation_error_has_the_path_of_the_field_and_a_message(
    server: Server, url: str, body: dict[str, Any], param: str, message: str
) -> None:
    answer = httpx.post(server.url + url, json=request_body(url, body), timeout=LONG)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is missing"),
        (b"[]", "the body must be an object, not a list"),
        (b'{"prompt": }', "the body is not JSON: Expecting value, at character 11"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"n": ' + b"1" * 5000 + b"}", "a number in it has more than 4300 digits"),
        (b'{"prompt": "\xff"}', "byte 12 is not valid UTF-8"),
    ],
    ids=["none", "list", "cut", "deep", "long", "bytes"],
)
def test_error_explains_why_a_body_cannot_be_read(server: Server, body: bytes, message: str) -> None:
    answer = httpx.post(server.url + TEXT, content=body, headers={"Content-Type": "application/json"}, timeout=LONG)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, None)
    assert message in answer.json()["error"]["message"]


def test_error_of_anthropics_api_names_the_field(server: Server) -> None:
    body = REQUEST | {"max_tokens": 1, "messages": [USER | {"content": [{"type": "text", "text": 5}]}]}
    error = httpx.post(server.url + MESSAGES, json=body, timeout=LONG).json()["error"]
    assert error["message"] == "messages[0].content[0].text must be a string, not 5"


def test_long_field_names_are_truncated_in_errors(server: Server) -> None:
    deep: dict[str, Any] = {"a" * 100: 5}
    error = httpx.post(server.url + TEXT, json=ASKED_TEXT | {"logit_bias": deep}, timeout=LONG).json()["error"]
    assert len(error["param"]) < 80


def test_tokenize_accepts_either_content_or_prompt(server: Server) -> None:
    answer = httpx.post(f"{server.url}/tokenize", json={"content": "a", "prompt": "b"}, timeout=LONG)
    assert answer.status_code == 400
    assert "not both" in answer.json()["error"]["message"]


def test_favicon_is_served_without_a_key(server: Server) -> None:
    icon = httpx.get(f"{server.url}/favicon.ico", timeout=LONG)
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
