"""Tests of keywords of schemas that no grammar can express, in all APIs: refused if strict, otherwise named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "hi"}]
SET = {"type": "object", "properties": {"v é": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}
PLACE = "#/properties/v%20%C3%A9/uniqueItems"


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        yield client


def chat_format(**more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SET, **more}}}


def response_format(**more: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "x", "schema": SET, **more}}}


REQUESTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 1},
    TEXT: {"prompt": "hi", "max_tokens": 1},
    RESPONSES: {"input": "hi", "max_output_tokens": 1},
    MESSAGES: {"messages": HELLO, "max_tokens": 1},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("url", "fields", "name"),
    [
        (CHAT, chat_format(), "response_format.json_schema.schema"),
        (CHAT, chat_format(strict=False), "response_format.json_schema.schema"),
        (CHAT, {"response_format": {"type": "json_object", "schema": SET}}, "response_format.schema"),
        (CHAT, {"json_schema": SET}, "json_schema"),
        (TEXT, chat_format(), "response_format.json_schema.schema"),
        (TEXT, {"guided_json": SET}, "guided_json"),
        (RESPONSES, response_format(), "text.format.schema"),
        (
            MESSAGES,
            {"output_config": {"format": {"type": "json_schema", "schema": SET}}},
            "output_config.format.schema",
        ),
    ],
)
def test_keyword_that_no_grammar_can_express_is_named_in_the_header(
    http: httpx.Client, url: str, fields: dict[str, Any], name: str, stream: bool
) -> None:
    response = http.post(url, json=REQUESTS[url] | fields | {"stream": stream})
    assert response.status_code == 200, response.text
    assert response.headers["x-pymtp-ignored"] == f"{name}{PLACE}"


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        *((url, chat_format(strict=True)) for url in (CHAT, TEXT)),
        (RESPONSES, response_format(strict=True)),
    ],
)
def test_strict_schema_is_refused_by_the_name_of_the_keyword(
    http: httpx.Client, url: str, fields: dict[str, Any]
) -> None:
    response = http.post(url, json=REQUESTS[url] | fields)
    assert response.status_code == 400
    assert "#/properties/v é has the keyword 'uniqueItems'" in response.json()["error"]["message"]
    assert "x-pymtp-ignored" not in response.headers


def test_keyword_in_the_schema_of_a_tool_is_named_beside_unknown_fields(http: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SET}}
    fields = {"tools": [tool], "max_token": 3}
    response = http.post(CHAT, json=REQUESTS[CHAT] | fields)
    assert response.headers["x-pymtp-ignored"] == "max_token, tools/f/v%20%C3%A9/uniqueItems"
    strict = {"tools": [{"type": "function", "function": {**tool["function"], "strict": True}}]}  # type: ignore[dict-item]
    assert "'uniqueItems'" in http.post(CHAT, json=REQUESTS[CHAT] | strict).json()["error"]["message"]
