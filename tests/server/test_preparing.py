"""A claim about requests whose prompts or grammars take long: the time limit is theirs, too."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pymtp import SamplingParams
from pymtp.asks import Ask
from pymtp.server import service
from pymtp.server.refusals import OverdueError
from pymtp.server.settings import Settings


def test_a_request_that_is_long_prepared_ends_at_its_limit_and_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(service, "prepared", lambda llm, ask: go_on.wait(60))
    llm: Any = SimpleNamespace(
        llm=SimpleNamespace(context=SimpleNamespace(n_seq_max=1), model=SimpleNamespace(path=Path("m"))),
        in_thread=asyncio.to_thread,
    )
    metrics: Any = SimpleNamespace(watch=lambda prompt: None, serve=lambda llm, name: None)

    async def test() -> None:
        server = service.Service(llm, Settings(), metrics)
        ask = Ask("a", SamplingParams(), timeout=0.05)
        try:
            with pytest.raises(OverdueError):
                await server.answer(ask).__aenter__()
            assert server.n_open == 0
        finally:
            go_on.set()

    asyncio.run(test())
