"""Claims about what limits a request before it begins."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pymtp import InvalidRequestError, SamplingParams
from pymtp.asks import Ask
from pymtp.server import service
from pymtp.server.refusals import OverdueError
from pymtp.server.settings import Settings


def alone() -> service.Service:
    """Without a model."""
    context = SimpleNamespace(n_seq_max=1, n_ctx=32768)
    llm: Any = SimpleNamespace(
        llm=SimpleNamespace(context=context, model=SimpleNamespace(path=Path("m"))), in_thread=asyncio.to_thread
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
