"""Tests of the errors of /v1/messages with Anthropic's own client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from helpers.late import anthropic
from helpers.servers import Server, wait_until

MESSAGES = [{"role": "user", "content": "def fibonacci(n):"}]
REQUEST: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 24}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


@pytest.fixture
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0)


def failing(client: anthropic.Anthropic, **more: Any) -> anthropic.APIStatusError:
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(**REQUEST | more)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["request_id"] == caught.value.request_id
    return caught.value


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": PIXEL}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": PIXEL}]}]}, "document"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
            "web_search_20250305",
        ),
        ({"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "ls"}}, "tool_choice"),
    ],
)
def test_unsupported_requests_raise_bad_request_error(
    client: anthropic.Anthropic, more: dict[str, Any], word: str
) -> None:
    error = failing(client, **more)
    assert isinstance(error, anthropic.BadRequestError)
    assert error.body["error"]["type"] == "invalid_request_error"
    assert word in error.body["error"]["message"]


def test_too_long_prompt_has_the_error_message_that_agents_know(client: anthropic.Anthropic) -> None:
    error = failing(client, messages=[{"role": "user", "content": "long " * 5000}])
    assert isinstance(error, anthropic.BadRequestError)
    assert error.body["error"]["message"].startswith("prompt is too long")


def test_api_key_works_in_either_header(new_server: Callable[..., Server]) -> None:
    server = new_server(api_keys=("right",)).ready()
    for key in ({"api_key": "right"}, {"auth_token": "right", "api_key": None}):
        with anthropic.Anthropic(base_url=server.url, max_retries=0, **key) as client:
            assert client.messages.create(**REQUEST).content
    error = failing(anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0))
    assert isinstance(error, anthropic.AuthenticationError)
    assert error.body["error"]["type"] == "authentication_error"


def test_unknown_model_raises_not_found_error(new_server: Callable[..., Server]) -> None:
    server = new_server(served_names=("mine",)).ready()
    error = failing(anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0))
    assert isinstance(error, anthropic.NotFoundError)
    assert error.body["error"]["type"] == "not_found_error"


def test_failure_in_a_stream_raises_an_error(client: anthropic.Anthropic) -> None:
    endless = {"grammar": "root ::= [a-z]+ root", "timeout": 0.2}
    with client.messages.stream(**REQUEST | {"max_tokens": 4000}, extra_body=endless) as stream:
        assert next(iter(stream)).type == "message_start"
        with pytest.raises(anthropic.APIStatusError) as caught:
            stream.until_done()
    assert caught.value.body["error"]["type"] == "timeout_error"


def test_client_disconnect_frees_the_slot(new_server: Callable[..., Server]) -> None:
    server = new_server().ready()
    endless = {"grammar": "root ::= [a-z]+ root"}
    request_body = REQUEST | {"max_tokens": 4000, "extra_body": endless}
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        client.messages.stream(**request_body) as stream,
    ):
        assert next(iter(stream.text_stream))
        assert not server.free()
    wait_until(server.free)


def test_invalid_json_gets_anthropics_error_object(server: Server) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{server.url}/v1/messages", content=b"{", headers=headers, timeout=30)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
