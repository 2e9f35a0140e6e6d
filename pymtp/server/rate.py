"""The measured rate of events, from which the server estimates when a client should try again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

MAX_EVENTS = 64  # recent events that count
MAX_SECONDS = 600  # longest estimate


class Rate:
    """The rate at which something is freed, such as places in a queue, since it began to be in use."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[tuple[float, float]] = deque()
        self._total = 0.0
        self.begin()

    def begin(self) -> None:
        """Forget all events: only amounts that are freed from now on count."""
        self._events.clear()
        self._begun, self._total = self._clock(), 0.0

    def add(self, amount: float) -> None:
        """Record that an amount was freed."""
        self._events.append((self._clock(), amount))
        self._total += amount
        if len(self._events) > MAX_EVENTS:
            self._begun, oldest = self._events.popleft()
            self._total -= oldest

    def seconds_until(self, amount: float) -> int:
        """Estimate the seconds until this amount is freed, from 1 to MAX_SECONDS.

        If nothing was freed so far, it will likely take as long again as it took so far.
        """
        elapsed = self._clock() - self._begun
        seconds = elapsed * amount / self._total if self._total else elapsed
        return max(1, min(math.ceil(seconds), MAX_SECONDS))
