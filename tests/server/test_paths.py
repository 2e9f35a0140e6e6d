"""Tests of the spellings of paths: with and without /v1, and with a slash at the end."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server
from starlette.types import Receive, Scope, Send

from pymtp import LLM
from pymtp.server.app import create_app
from pymtp.server.http.paths import PathSpellingMiddleware
from pymtp.server.settings import ServerSettings

HELLO = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/completions": {"model": "m", "prompt": "a", "max_tokens": 1},  # without a model, it is llama.cpp's /completions
    "/messages": {"messages": HELLO, "max_tokens": 1},
    "/messages/count_tokens": {"messages": HELLO},
    "/responses": {"input": "a", "max_output_tokens": 1},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [1]},
}


def no_llm() -> LLM:
    raise AssertionError("the application is never started")


@pytest.mark.parametrize(
    ("given", "routed"),
    {
        "/chat/completions": "/v1/chat/completions",
        "/v1/chat/completions/": "/v1/chat/completions",
        "/chat/completions//": "/v1/chat/completions",
        "/responses/resp_1": "/v1/responses/resp_1",
        "/models/a/b": "/v1/models/a/b",
        "/v1/models/": "/v1/models",
        "/v1/tokenize": "/tokenize",
        "/v1/props/": "/props",
        "/health/": "/health",
        "/": "/",
        "//": "/",
        "": "/",
        "/v1/": "/v1/",
        "/nothing/": "/nothing/",
        "/v1/v1/messages": "/v1/messages",
        "/chat": "/chat",
        "/v1/chat/completions/x": "/v1/chat/completions/x",
    }.items(),
)
def test_path_is_routed_to_the_path_that_the_client_means(given: str, routed: str) -> None:
    seen: list[tuple[str, bytes]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["path"], scope["raw_path"]))

    middleware = PathSpellingMiddleware(app, create_app(ServerSettings(), no_llm))
    scope = {"type": "http", "path": given, "raw_path": given.encode()}
    asyncio.run(middleware(scope, None, None))  # type: ignore[arg-type] # the stub calls neither
    assert seen == [(routed, routed.encode())]
    assert scope["path"] == given


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("spelling", ["{}", "/v1{}", "/v1{}/"])
def test_each_path_is_answered_in_each_spelling(server: Server, spelling: str, path: str) -> None:
    answer = httpx.post(server.url + spelling.format(path), json=ASKED[path], timeout=LONG)
    assert answer.status_code == 200, answer.text


def test_error_without_v1_has_the_form_of_its_api(server: Server) -> None:
    assert httpx.post(f"{server.url}/messages", json={}, timeout=LONG).json()["type"] == "error"
    assert "param" in httpx.post(f"{server.url}/chat/completions", json={}, timeout=LONG).json()["error"]


def test_path_without_v1_needs_a_key_as_the_path_with_it(new_server: Any) -> None:
    server = new_server(api_keys=("secret",)).ready()
    for path in ("/models", "/chat/completions/", "/v1/models/", "/props/"):
        assert httpx.get(server.url + path, timeout=LONG).status_code == 401
    assert httpx.get(f"{server.url}/health/", timeout=LONG).status_code == 200
