"""Requests that arrive at an engine while it runs: when each was due, and when its pieces came."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from pymtp.engine.engine import Engine
from pymtp.engine.request import Request
from pymtp.errors import NativeError


@dataclass
class Heard:
    """What was heard of a request. due: when it was to arrive, on the engine's clock, in seconds. pieces: when its
    tokens came, a round's at once."""

    request: Request
    due: float
    pieces: list[float] = field(default_factory=list)

    @property
    def first_token(self) -> float:
        """Seconds from its arrival to its first token."""
        return self.pieces[0] - self.due

    @property
    def gaps(self) -> list[float]:
        """Seconds from each piece to the next."""
        return [later - earlier for earlier, later in pairwise(self.pieces)]


class Traffic:
    """Steps an engine for requests of its own. Nobody else may step it meanwhile.

    steps: seconds of each step. texts: what was heard of each request.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """clock: the engine's."""
        self._engine, self._clock, self._sleep = engine, clock, sleep
        self.steps: list[float] = []
        self.texts: list[Heard] = []
        self._running: list[Heard] = []

    def add(self, request: Request, due: float | None = None) -> Heard:
        """Listens to a request that was just submitted. due: not now, but then: steps are not left for arrivals."""
        heard = Heard(request, self._clock() if due is None else due)
        self.texts.append(heard)
        self._running.append(heard)
        return heard

    def step(self) -> None:
        """Steps the engine once. Raises NativeError when a request failed."""
        started = self._clock()
        self._engine.step()
        self.steps.append(self._clock() - started)
        for heard in self._running:
            if len(heard.request.tokens) and heard.pieces[-1:] != [heard.request.updated]:
                heard.pieces.append(heard.request.updated)
            if (error := heard.request.failure()) is not None:
                raise error if isinstance(error, NativeError) else NativeError(f"a request failed: {error}")
        self._running = [heard for heard in self._running if not heard.request.ended]

    def step_until(self, done: Callable[[], bool]) -> None:
        """Steps until it is so, or all requests have ended."""
        while self._running and not done():
            self.step()

    def run(self, submits: Sequence[Callable[[], Request]], delays: Sequence[float]) -> float:
        """Submits each request when it is due, so many seconds from now, rising, and steps until all have ended.
        Returns the seconds until then."""
        begin = self._clock()
        todo = list(zip(submits, delays, strict=True))[::-1]
        while todo or self._running:
            while todo and self._clock() - begin >= todo[-1][1]:
                submit, delay = todo.pop()
                self.add(submit(), begin + delay)
            if self._running:
                self.step()
            else:
                self._sleep(max(0.0, begin + todo[-1][1] - self._clock()))
        return self._clock() - begin


def delays(n: int, rate: float | None, seed: int) -> list[float]:
    """Seconds until each of n requests arrives: as a Poisson process, `rate` of them a second; None: all at once."""
    if rate is None:
        return [0.0] * n
    random, now, found = Random(seed), 0.0, []
    for _ in range(n):
        found.append(now)
        now += random.expovariate(rate)
    return found
