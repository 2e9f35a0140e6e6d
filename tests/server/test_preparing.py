"""Claims about what limits a request before it begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp import InvalidRequestError, SamplingParams
from pymtp.openai.generate_request import Ask
from pymtp.server import service
from pymtp.server.errors import OverdueError, UnavailableError
from pymtp.server.openai import completions
from pymtp.server.settings import Settings


def alone() -> service.Service:
    """Without a model."""
    context = SimpleNamespace(n_seq_max=1, n_ctx=32768)
    llm: Any = SimpleNamespace(
        llm=SimpleNamespace(context=context, model=SimpleNamespace(path=Path("m"))), prepare=asyncio.to_thread
    )
    metrics: Any = SimpleNamespace(watch=lambda prompt: None, serve=lambda llm, name: None)
    return service.Service(llm, Settings(), metrics)


def test_a_request_that_is_long_prepared_ends_at_its_limit_and_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(service, "prepared", lambda llm, ask: go_on.wait(60))

    async def test() -> None:
        server = alone()
        ask = Ask("a", SamplingParams(), timeout=0.05)
        try:
            with pytest.raises(OverdueError):
                await server.answer(ask).__aenter__()
            assert server.n_open == 0
        finally:
            go_on.set()

    asyncio.run(test())


def test_a_request_that_is_looked_at_for_too_long_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(service, "PREPARING", 0.05)
    monkeypatch.setattr(service, "prepared", lambda llm, ask: go_on.wait(60))

    async def test() -> None:
        server = alone()
        try:
            for timeout in (None, 100):
                with pytest.raises(UnavailableError):
                    await server.answer(Ask("a", SamplingParams(), timeout=timeout)).__aenter__()
            with pytest.raises(UnavailableError):
                await server.prepare(lambda: go_on.wait(60))
            assert server.n_open == 0
        finally:
            go_on.set()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "model": "m", "max_tokens": 1}),
        ("/tokenize", {"content": "a"}),
    ],
)
def test_requests_that_are_looked_at_for_long_hold_up_no_others(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    server, go_on = new_server(llm={"n_seq_max": 2}).ready(), threading.Event()
    tokenize, looked_at = server.llm.model.tokenize, threading.Event()

    def waits(*given: Any, **named: Any) -> list[int]:
        looked_at.set()
        assert go_on.wait(LONG)
        return tokenize(*given, **named)

    monkeypatch.setattr(server.llm.model, "tokenize", waits)
    with ThreadPoolExecutor(40) as clients:
        try:
            answers = [clients.submit(httpx.post, server.url + path, json=body, timeout=LONG) for _ in range(40)]
            assert looked_at.wait(LONG)
            figures = httpx.get(server.url + "/figures", timeout=LONG / 2)
            assert figures.json()["memory"]
        finally:
            go_on.set()
        assert {answer.result().status_code for answer in answers} == {200}


def test_a_schema_is_read_beside_the_event_loop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    read = completions.read_ask
    monkeypatch.setattr(
        completions, "read_ask", lambda *given: threads.append(threading.current_thread()) or read(*given)
    )
    asked = {"prompt": "a", "max_tokens": 1, "json_schema": {"type": "string"}}
    assert httpx.post(server.url + "/v1/completions", json=asked, timeout=LONG).status_code == 200
    assert threads[0].name.startswith("pymtp prepare")


def test_more_log_probabilities_than_memory_should_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class PreparedError(Exception):
        pass

    def prepared(llm: object, ask: Ask) -> None:
        raise PreparedError

    monkeypatch.setattr(service, "prepared", prepared)

    def begin(**params: Any) -> None:
        asyncio.run(alone().answer(Ask("a", SamplingParams(**params))).__aenter__())

    for few in ({"logprobs": 20, "max_tokens": None}, {"logprobs": 100, "n": 8, "max_tokens": 4096}, {"n": 128}):
        with pytest.raises(PreparedError):
            begin(**few)
    for many in ({"logprobs": 100, "n": 128, "max_tokens": None}, {"logprobs": 100, "n": 16, "max_tokens": 4096}):
        with pytest.raises(InvalidRequestError, match="a smaller max_tokens is right"):
            begin(**many)
