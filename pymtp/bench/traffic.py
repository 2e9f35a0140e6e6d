"""A driver for requests that arrive at an engine while it runs, which records the times of their tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

from pymtp.context.inspect import Counters
from pymtp.engine.engine import Engine
from pymtp.engine.request import Completion, Request, Waiter
from pymtp.errors import NativeError
from pymtp.llm import LLM
from pymtp.sampling import SamplingParams

T = TypeVar("T")


@dataclass
class RequestTiming:
    """The times of a request, in seconds of the engine's clock.

    due: planned arrival of the request.
    pieces: time of each piece, which is the tokens that one round generated for the request.
    """

    request: Request
    due: float
    pieces: list[float] = field(default_factory=list)

    @property
    def first_token(self) -> float:
        """Return the seconds from the request's arrival to its first token."""
        return self.pieces[0] - self.due

    @property
    def gaps(self) -> list[float]:
        """Return the seconds from each piece to the next."""
        return [later - earlier for earlier, later in pairwise(self.pieces)]


class Traffic:
    """A driver that steps an engine, and records the times of requests. No other thread must step the engine meanwhile.

    step_seconds: duration of each step.
    timings: the times of each request.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Drive an engine. clock: the clock that the engine uses."""
        self._engine, self._clock, self._sleep = engine, clock, sleep
        self.step_seconds: list[float] = []
        self.timings: list[RequestTiming] = []
        self._running: list[RequestTiming] = []

    def add(self, request: Request, due: float | None = None) -> RequestTiming:
        """Start to record the times of a request that was just submitted.

        due: planned arrival of the request, which may have passed during the last step; None for now.
        """
        timing = RequestTiming(request, self._clock() if due is None else due)
        self.timings.append(timing)
        self._running.append(timing)
        return timing

    def step(self) -> None:
        """Step the engine once. Raises NativeError if a request fails."""
        started = self._clock()
        self._engine.step()
        self.step_seconds.append(self._clock() - started)
        for timing in self._running:
            if len(timing.request.tokens) and timing.pieces[-1:] != [timing.request.last_piece_time]:
                timing.pieces.append(timing.request.last_piece_time)
            if (error := timing.request.error_copy()) is not None:
                raise error if isinstance(error, NativeError) else NativeError(f"a request failed: {error}")
        self._running = [timing for timing in self._running if not timing.request.ended]

    def step_until(self, done: Callable[[], bool]) -> None:
        """Step the engine until done() is true or all requests have ended."""
        while self._running and not done():
            self.step()

    def run(self, submits: Sequence[Callable[[], Request]], delays: Sequence[float]) -> float:
        """Submit requests after their delays, and step the engine until all have ended. Return the total seconds.

        submits: functions that submit one request each.
        delays: for each request, seconds from now, in ascending order.
        """
        begin = self._clock()
        waiting = list(zip(submits, delays, strict=True))[::-1]
        while waiting or self._running:
            while waiting and self._clock() - begin >= waiting[-1][1]:
                submit, delay = waiting.pop()
                self.add(submit(), begin + delay)
            if self._running:
                self.step()
            else:
                self._sleep(max(0.0, begin + waiting[-1][1] - self._clock()))
        return self._clock() - begin


def prepare(llm: LLM, prompt: Sequence[int], params: SamplingParams, **options: Any) -> Callable[[], Request]:
    """Make a request. Return a function that submits it, for a Traffic of the LLM's engine. options: of the request."""
    (request,) = llm._make_requests([list(prompt)], params, Waiter(), **options)

    def submit() -> Request:
        llm._engine.submit(request)
        return request

    return submit


@dataclass(frozen=True)
class SingleRun:
    """A completion, and the context's counters before its prompt, after its first token, and after its last token."""

    completion: Completion
    started: Counters
    prefilled: Counters
    ended: Counters


def run_single(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> SingleRun:
    """Generate after one prompt while the LLM runs nothing else. Raises NativeError if the request fails."""
    context, submit = llm.context, prepare(llm, prompt, params)

    def run() -> SingleRun:
        traffic, started = Traffic(llm._engine), context.counters
        timing = traffic.add(submit())
        traffic.step_until(lambda: bool(timing.pieces))  # only the prefill and the first token
        prefilled = context.counters
        traffic.step_until(lambda: False)
        return SingleRun(timing.request.completion, started, prefilled, context.counters)

    return run_on_engine_thread(llm, run)


def run_on_engine_thread(llm: LLM, function: Callable[[], T]) -> T:
    """Run a function that steps the LLM's engine on the engine's thread, which runs nothing else meanwhile.

    Raises the errors of the function, and KeyboardInterrupt, which cancels all requests.
    """
    try:
        return llm._engine_thread.call(function)
    except BaseException:
        llm.cancel()
        raise


def delays(n: int, rate: float | None, seed: int) -> list[float]:
    """Draw the arrival times of n requests in seconds from the start, the first at 0.

    rate: mean number of requests per second, of a Poisson process; None if all requests arrive at once.
    """
    if rate is None:
        return [0.0] * n
    random, now, times = Random(seed), 0.0, []
    for _ in range(n):
        times.append(now)
        now += random.expovariate(rate)
    return times
