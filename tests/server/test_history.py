"""Tests of chats that clients send as history: what models and tools wrote is taken, whatever its form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server
from helpers.templates import template
from makers.gguf_variants import rewrite

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HALF = "ls \ud83d..."  # half an emoji, as clients send that cut strings of UTF-16
USER = {"role": "user", "content": "hi"}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "r"}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TYPED = {"name": "ls", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def server(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve the shipped model with Qwen3.5's template, which refuses late system messages and chats without a user."""
    path = tmp_path_factory.mktemp("models") / "qwen.gguf"
    rewrite(demo, path, metadata={"tokenizer.chat_template": template("Qwen3.5-4B")})
    server = Server(model=path).ready()
    yield server
    server.close()


def call(arguments: Any, name: str = "f") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def use(given: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": given}]}


def result(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]}


def answered(*blocks: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "content": list(blocks)}, USER]


def function_call(arguments: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}


def output(value: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c", "output": value}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
SYSTEM, DEVELOPER = {"role": "system", "content": "s"}, {"role": "developer", "content": "d"}
SHELL = {
    "type": "local_shell_call",
    "id": "l",
    "call_id": "l",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}

# For each path, chats by their names: messages or input, and further fields.
CHATS: dict[str, dict[str, tuple[Any, dict[str, Any]]]] = {
    CHAT: {
        "arguments that were cut": ([USER, call('{"city": "'), RESULT], {"tools": [FUNCTION]}),
        "arguments of a list": ([USER, call("[1]"), RESULT], {}),
        "empty arguments": ([USER, call(""), RESULT], {}),
        "arguments null": ([USER, call("null"), RESULT], {}),
        "no arguments": ([USER, call(None), RESULT], {}),
        "arguments as an object": ([USER, call({"a": 1}), RESULT], {}),
        "repeated arguments": ([USER, call('{"a": 1, "a": 2}'), RESULT], {}),
        "deep arguments": ([USER, call('{"a":' * 500 + "1" + "}" * 500), RESULT], {}),
        "half an emoji in arguments": ([USER, call(json.dumps({"a": HALF})), RESULT], {}),
        "half an emoji in cut arguments": ([USER, call(f'{{"a": "{HALF}'), RESULT], {}),
        "a name that no tool has": ([USER, call("{}", "gone"), RESULT], {"tools": [FUNCTION]}),
        "an empty name": ([USER, call("{}", ""), RESULT], {}),
        "an image in a result": ([USER, call("{}"), RESULT | {"content": [{"type": "image_url"}]}], {}),
        "a result without a call": ([RESULT, USER], {}),
        "only a result": ([RESULT], {}),
        "system messages anywhere": ([SYSTEM, DEVELOPER, USER, SYSTEM, DEVELOPER, USER, SYSTEM], {}),
        "only a system message": ([SYSTEM], {}),
        "content null": ([SYSTEM | {"content": None}, USER | {"content": None}], {}),
        "empty content": ([SYSTEM | {"content": ""}, USER | {"content": []}], {}),
        "two answers in a row": ([USER, {"role": "assistant", "content": "a"}, {"role": "assistant"}, USER], {}),
        "names of speakers": ([SYSTEM | {"name": HALF}, USER | {"name": "bob"}], {}),
        "half an emoji elsewhere": ([SYSTEM | {"content": HALF}, USER], {"metadata": {"a": HALF}, "stop": [HALF]}),
        "the deprecated form": (
            [
                USER,
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{"}},
                {"role": "function", "name": "f", "content": "r"},
            ],
            {},
        ),
    },
    MESSAGES: {
        "input that is text": ([USER, use("ls"), result("r")], {}),
        "input null": ([USER, use(None), result("r")], {}),
        "a result without a call": ([result("r")], {}),
        "an image in a result": ([USER, use({}), result([IMAGE])], {}),
        "a PDF in a result": ([USER, use({}), result([PDF])], {}),
        "a reference to a tool": ([USER, use({}), result([{"type": "tool_reference", "tool_name": "f"}])], {}),
        "a part of an unknown kind": ([USER, use({}), result([{"type": "what"}, 5, None])], {}),
        "half an emoji": ([USER | {"content": HALF}, use({"a": HALF}), result(HALF)], {"system": HALF}),
        "half an emoji in metadata": ([USER], {"metadata": {"user_id": HALF}}),
        "calls of another server": (
            answered(
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            ),
            {},
        ),
        "a block of an unknown kind": (answered({"type": "what"}), {}),
        "only an answer": ([{"role": "assistant", "content": "a"}], {}),
        "only hidden thinking": ([{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}], {}),
        "only a system message": ([SYSTEM], {}),
        "system messages anywhere": ([SYSTEM, USER, SYSTEM, SYSTEM, USER, SYSTEM], {"system": "a"}),
        "two answers in a row": ([USER, use({}), {"role": "assistant", "content": "a"}, USER], {}),
        "content null and empty": ([USER | {"content": None}, USER | {"content": []}], {}),
        "no servers": ([USER], {"mcp_servers": []}),
    },
    RESPONSES: {
        "arguments that were cut": ([USER, function_call('{"city": "'), output("r")], {"tools": [FLAT]}),
        "arguments null": ([USER, function_call(None), output(None)], {}),
        "an image in an output": ([USER, function_call("{}"), output([{"type": "input_image"}])], {}),
        "an output that is an object": ([USER, function_call("{}"), output({"a": 1})], {}),
        "reasoning of another server": ([USER, {"type": "reasoning", "id": "r", "encrypted_content": "gAAA"}], {}),
        "calls of other tools": ([USER, SHELL, {"type": "local_shell_call_output", "id": "l", "output": "x"}], {}),
        "a search of another server": ([USER, {"type": "web_search_call", "id": "w", "action": {}}, USER], {}),
        "an unknown reference": ([{"type": "item_reference", "id": "msg_1"}, USER], {}),
        "only an item that says nothing": ([{"type": "mcp_list_tools", "id": "m", "tools": []}], {}),
        "only instructions": ([], {"instructions": HALF}),
        "only a developer message": ([DEVELOPER], {}),
        "developer messages anywhere": ([DEVELOPER, DEVELOPER, USER, DEVELOPER, SYSTEM, USER], {}),
        "content null": ([USER | {"content": None}], {}),
        "half an emoji": ([USER | {"content": HALF}, function_call(HALF), output(HALF)], {"metadata": {"a": HALF}}),
    },
}


def post(server: Server, path: str, given: Any, more: dict[str, Any]) -> httpx.Response:
    field, limit = ("input", "max_output_tokens") if path == RESPONSES else ("messages", "max_tokens")
    body = {"model": "m", field: given, limit: 1, **more}
    return httpx.post(
        f"{server.url}{path}", content=json.dumps(body), headers={"content-type": "application/json"}, timeout=LONG
    )


@pytest.mark.parametrize("path", CHATS)
def test_history_is_no_reason_to_refuse_a_request(server: Server, path: str) -> None:
    refused = {
        name: answer.text
        for name, (given, more) in CHATS[path].items()
        if (answer := post(server, path, given, more)).status_code != 200
    }
    assert not refused


NO_PROJECTOR = "this model was loaded without a projector"


@pytest.mark.parametrize(
    ("path", "part", "words"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "data:"}}, NO_PROJECTOR),
        (CHAT, {"type": "image_url", "image_url": "http://a.example/"}, NO_PROJECTOR),
        (MESSAGES, IMAGE, NO_PROJECTOR),
        (RESPONSES, {"type": "input_image", "image_url": "data:"}, NO_PROJECTOR),
        (CHAT, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "'input_audio' is not supported"),
        (CHAT, {"type": "video_url", "video_url": {"url": "data:"}}, "'video_url' is not supported"),
        (CHAT, {"type": "file", "file": {"file_id": "f"}}, "'file' is not supported"),
        (MESSAGES, PDF, "'document of base64' is not supported"),
        (RESPONSES, {"type": "input_file", "file_id": "f"}, "'input_file' is not supported"),
    ],
)
def test_part_that_a_model_cannot_read_is_refused_by_name(server: Server, path: str, part: Any, words: str) -> None:
    answer = post(server, path, [USER | {"content": [part]}], {})
    assert answer.status_code == 400
    assert words in answer.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "tools", "ignored"),
    [
        (CHAT, [{"type": "custom", "custom": {"name": "x"}}, FUNCTION, {"type": "web_search"}], "custom web_search"),
        (MESSAGES, [{"type": "web_search_20250305", "name": "web_search"}, TYPED], "web_search_20250305"),
        (RESPONSES, [{"type": "local_shell"}, FLAT, {"type": "mcp", "server_label": "s"}], "local_shell mcp"),
    ],
)
def test_header_names_the_tools_that_are_skipped(
    server: Server, path: str, tools: Any, ignored: str, stream: bool
) -> None:
    answer = post(server, path, [USER], {"tools": tools, "stream": stream})
    assert answer.status_code == 200, answer.text
    assert [name.split(".")[2] for name in answer.headers["x-pymtp-ignored"].split(", ")] == ignored.split()


@pytest.mark.parametrize(
    ("path", "tools", "choice"),
    [
        (CHAT, [{"type": "custom", "custom": {"name": "x"}}, FUNCTION], {"type": "custom", "custom": {"name": "x"}}),
        (CHAT, [{"type": "web_search"}], "required"),
        (MESSAGES, [{"type": "web_search_20250305", "name": "x"}, TYPED], {"type": "tool", "name": "x"}),
        (RESPONSES, [{"type": "mcp", "server_label": "x"}, FLAT], {"type": "mcp", "server_label": "x"}),
    ],
)
def test_choice_of_a_skipped_tool_is_refused(server: Server, path: str, tools: Any, choice: Any) -> None:
    answer = post(server, path, [USER], {"tools": tools, "tool_choice": choice})
    assert answer.status_code == 400
    assert "which this server cannot offer" in answer.text


def test_log_names_what_is_ignored_once_a_client(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    more = {"tools": [{"type": "shell"}, FLAT]}
    for _ in range(2):
        post(server, RESPONSES, "hi", more)
    post(server, RESPONSES, "hi", {"tools": [FLAT]})
    lines = [record.fields for record in caplog.records if "change nothing" in record.message]  # type: ignore[attr-defined]
    assert [(line["path"], line["ignored"]) for line in lines] == [(RESPONSES, "tools.0.shell")]
