"""Claims about the moments at which streams hand on what came: on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from pymtp.async_llm import TextPart
from pymtp.chat import AnswerReader, Event, Said
from pymtp.engine.request import Piece
from pymtp.server.service import Answering

INTERVAL = 0.02
EVERY = 0.003  # seconds between two pieces

NOBODY: Any = SimpleNamespace(tokens=lambda n: None, ended=lambda done: None)  # watches for metrics

T = TypeVar("T")


class ByHand(asyncio.SelectorEventLoop):
    """Its time stands still, but for what it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Pieces:
    """Texts that write a piece every few milliseconds, so many of them."""

    def __init__(self, n: int) -> None:
        self._begun = asyncio.get_running_loop().time()
        self._n, self._taken = n, 0

    async def take(self) -> list[TextPart]:
        loop = asyncio.get_running_loop()
        if self._taken == self._n:
            return []
        await asyncio.sleep(max(0.0, self._begun + (self._taken + 1) * EVERY - loop.time()))
        there = min(self._n, int((loop.time() - self._begun) / EVERY + 1e-6))
        pieces = [Piece("a", [1]) for _ in range(there - self._taken)]
        self._taken = there
        return [TextPart(0, pieces, "length" if there == self._n else None)]

    completions: tuple[()] = ()  # which nobody looks at here

    def close(self) -> None: ...


def run(test: Callable[[ByHand], Awaitable[T]]) -> T:
    loop = ByHand()
    try:
        return loop.run_until_complete(test(loop))
    finally:
        loop.close()


def test_streams_go_on_at_the_same_moments() -> None:
    async def follow(loop: ByHand, begins: float) -> list[tuple[float, int]]:
        await asyncio.sleep(begins)
        texts: Any = Pieces(40)
        found = []
        async for update in Answering(texts, None, 1, INTERVAL, loop.time(), 1e9, NOBODY):
            found.append((loop.time(), len(update.pieces)))
        return found

    async def test(loop: ByHand) -> list[list[tuple[float, int]]]:
        return await asyncio.gather(follow(loop, 0.004), follow(loop, 0.013))

    for begins, updates in zip((0.004, 0.013), run(test), strict=True):
        (first, n), *others = updates
        assert (first, n) == (pytest.approx(begins + EVERY), 1)  # the first token does not wait
        assert sum(n for _, n in updates) == 40
        for at, _ in others[:-1]:
            assert at / INTERVAL == pytest.approx(round(at / INTERVAL))
        assert max(n for _, n in others) <= 1.5 * INTERVAL / EVERY + 1


class Whole:
    """A long text that is handed out at its end."""

    def __init__(self, text: str) -> None:
        self._text, self._parts = text, [TextPart(0, [], "length")]

    async def take(self) -> list[TextPart]:
        return [self._parts.pop()] if self._parts else []

    def completion(self, index: int) -> Any:
        return SimpleNamespace(text=self._text)

    completions: tuple[()] = ()


def test_others_have_their_turns_while_a_long_text_is_read() -> None:
    turns = 0
    begun: list[int] = []

    class Reader(AnswerReader):
        def push(self, text: str) -> list[Event]:
            begun.append(turns)
            return super().push(text)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def test(loop: ByHand) -> str:
        texts: Any = Whole("a<b " * 10_000)
        form: Any = SimpleNamespace(reader=Reader)
        running = asyncio.ensure_future(other())
        (update,) = [each async for each in Answering(texts, form, 1, 0.0, loop.time(), 1e9, NOBODY)]
        running.cancel()
        assert update.finish_reason == "length"
        return "".join(event.text for event in update.events if isinstance(event, Said))

    assert run(test) == "a<b " * 10_000
    assert len(begun) >= 10
    assert len(set(begun)) == len(begun)


def test_an_interval_of_nothing_hands_on_each_piece() -> None:
    async def test(loop: ByHand) -> list[int]:
        texts: Any = Pieces(5)
        return [len(update.pieces) async for update in Answering(texts, None, 1, 0.0, loop.time(), 1e9, NOBODY)]

    assert run(test) == [1] * 5
