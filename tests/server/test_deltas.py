"""Tests of the moments at which streams send deltas, with a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from pymtp.chat import ContentDelta, OutputEvent, OutputParser
from pymtp.engine.deltas import CompletionDelta
from pymtp.engine.request import Piece
from pymtp.server.errors import RequestTimeoutError
from pymtp.server.service import RunningRequest

CHUNK_INTERVAL = 0.02
PIECE_INTERVAL = 0.003  # seconds between two pieces

NO_METRICS: Any = SimpleNamespace(on_tokens=lambda n: None, on_finished=lambda done: None)

T = TypeVar("T")


class FakeClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to its next timer instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class ScheduledCompletion:
    """A completion whose n pieces arrive at intervals of PIECE_INTERVAL seconds."""

    def __init__(self, n: int) -> None:
        self._start = asyncio.get_running_loop().time()
        self._n, self._taken = n, 0

    async def take(self) -> list[CompletionDelta]:
        loop = asyncio.get_running_loop()
        if self._taken == self._n:
            return []
        await asyncio.sleep(max(0.0, self._start + (self._taken + 1) * PIECE_INTERVAL - loop.time()))
        n_ready = min(self._n, int((loop.time() - self._start) / PIECE_INTERVAL + 1e-6))
        pieces = [Piece("a", [1]) for _ in range(n_ready - self._taken)]
        self._taken = n_ready
        return [CompletionDelta(0, pieces, "length" if n_ready == self._n else None)]

    completions: tuple[()] = ()

    def close(self) -> None: ...


def run(test: Callable[[FakeClockLoop], Awaitable[T]]) -> T:
    loop = FakeClockLoop()
    try:
        return loop.run_until_complete(test(loop))
    finally:
        loop.close()


def test_all_streams_send_their_deltas_at_the_same_moments() -> None:
    async def follow(loop: FakeClockLoop, begins: float) -> list[tuple[float, int]]:
        await asyncio.sleep(begins)
        texts: Any = ScheduledCompletion(40)
        found = []
        async for delta in RunningRequest(texts, None, 1, CHUNK_INTERVAL, loop.time(), 1e9, NO_METRICS):
            found.append((loop.time(), len(delta.pieces)))
        return found

    async def test(loop: FakeClockLoop) -> list[list[tuple[float, int]]]:
        return await asyncio.gather(follow(loop, 0.004), follow(loop, 0.013))

    for begins, deltas in zip((0.004, 0.013), run(test), strict=True):
        (first, n), *others = deltas
        assert (first, n) == (pytest.approx(begins + PIECE_INTERVAL), 1)  # the first token is sent without delay
        assert sum(n for _, n in deltas) == 40
        for at, _ in others[:-1]:
            assert at / CHUNK_INTERVAL == pytest.approx(round(at / CHUNK_INTERVAL))
        assert max(n for _, n in others) <= 1.5 * CHUNK_INTERVAL / PIECE_INTERVAL + 1


class LongCompletion:
    """A completion without streaming, whose whole text arrives at the end."""

    def __init__(self, text: str) -> None:
        self._text, self._parts = text, [CompletionDelta(0, [], "length")]

    async def take(self) -> list[CompletionDelta]:
        return [self._parts.pop()] if self._parts else []

    def completion(self, index: int) -> Any:
        return SimpleNamespace(text=self._text)

    completions: tuple[()] = ()


def test_long_text_is_parsed_in_slices() -> None:
    turns = 0
    turns_at_push: list[int] = []

    class RecordingParser(OutputParser):
        def push(self, text: str) -> list[OutputEvent]:
            turns_at_push.append(turns)
            return super().push(text)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def test(loop: FakeClockLoop) -> str:
        texts: Any = LongCompletion("a<b " * 10_000)
        form: Any = SimpleNamespace(parser=RecordingParser)
        running = asyncio.ensure_future(other())
        (delta,) = [each async for each in RunningRequest(texts, form, 1, 0.0, loop.time(), 1e9, NO_METRICS)]
        running.cancel()
        assert delta.reason == "length"
        return "".join(event.text for event in delta.events if isinstance(event, ContentDelta))

    assert run(test) == "a<b " * 10_000
    assert len(turns_at_push) >= 10
    assert len(set(turns_at_push)) == len(turns_at_push)


def test_chunk_interval_of_0_sends_each_piece_separately() -> None:
    async def test(loop: FakeClockLoop) -> list[int]:
        texts: Any = ScheduledCompletion(5)
        return [len(delta.pieces) async for delta in RunningRequest(texts, None, 1, 0.0, loop.time(), 1e9, NO_METRICS)]

    assert run(test) == [1] * 5


def test_timeout_ends_a_request_whose_prompt_takes_too_long() -> None:
    async def never() -> None:
        await asyncio.Future()

    async def test(loop: FakeClockLoop) -> None:
        texts: Any = ScheduledCompletion(5)
        running = RunningRequest(texts, None, 1, 0.0, loop.time(), 3.0, NO_METRICS, never)
        with pytest.raises(RequestTimeoutError):
            await running.outputs()
        assert loop.time() == pytest.approx(3)

    run(test)
