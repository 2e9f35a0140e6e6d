"""Who runs next: first come, first served, within priorities."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from pymtp.engine.request import Request
from pymtp.errors import ContextFullError

# Pieces of a stream that may wait for their reader, before others go on without it.
READ_AHEAD = 4


class Scheduler:
    """Which requests have a sequence of the context, and which wait for one.

    A request keeps its sequence to its end. Where others wait, a stream whose reader does not take its pieces gives way
    once: it begins anew later, and writes the same.
    """

    def __init__(self, n_seq_max: int, n_ctx: int) -> None:
        self._n_ctx = n_ctx
        self._free = list(range(n_seq_max))  # rising: the native side wants sequences that follow each other
        self._waiting: list[tuple[tuple[int, int], Request]] = []  # a heap
        self.running: list[Request] = []  # by sequence

    def check(self, prompt: Sequence[int]) -> None:
        """Raises ContextFullError for a prompt that no wait makes room for."""
        if len(prompt) > self._n_ctx:
            raise ContextFullError(f"the prompt has {len(prompt)} tokens, n_ctx is {self._n_ctx}")

    def __iter__(self) -> Iterator[Request]:
        """All requests, in no order."""
        yield from [*self.running, *(request for _, request in self._waiting)]

    @property
    def n_waiting(self) -> int:
        """Requests that wait for a sequence."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether all requests, if there are any, write streams that their readers do not take."""
        return not self._waiting and all(request.paused and request.writer is not None for request in self.running)

    @property
    def free(self) -> Sequence[int]:
        """Sequences that no request has, rising."""
        return self._free

    def add(self, request: Request) -> None:
        """A request that has no sequence yet, or no longer."""
        heapq.heappush(self._waiting, (request.rank, request))

    def next(self) -> Request | None:
        """The request whose turn it is to get a sequence, where one is free."""
        return self._waiting[0][1] if self._waiting and self._free else None

    def start(self, request: Request, seq: int) -> None:
        """The next request gets the sequence."""
        heapq.heappop(self._waiting)
        self._free.remove(seq)
        request.seq = seq
        self.running = sorted([*self.running, request], key=_sequence)

    def stop(self, request: Request) -> None:
        """Takes a request out: its sequence is free."""
        if request.seq is None:
            self._waiting = [one for one in self._waiting if one[1] is not request]
            heapq.heapify(self._waiting)
        else:
            self._free = sorted([*self._free, request.seq])
            request.seq = None
            self.running = [one for one in self.running if one is not request]

    def give_way(self) -> Request | None:
        """The stream that is to make room for one that waits, if there is one."""
        if self._free or not self._waiting:
            return None
        priority = self._waiting[0][1].priority
        paused = [r for r in self.running if r.paused and not r.gave_way and r.priority >= priority]
        return max(paused, key=_rank, default=None)

    def writing(self) -> list[Request]:
        """The requests of the next round, by sequence. Where nobody waits for what the streams bring, and others wait
        for their sequences, they go on all the same."""
        active = [request for request in self.running if request.writer is not None and not request.paused]
        if not active and self._waiting and all(request.writer is not None for request in self.running):
            return self.running
        return active

    def reading(self) -> list[Request]:
        """The requests whose prompts are not read, in their order."""
        return sorted((request for request in self.running if request.writer is None), key=_rank)


def _sequence(request: Request) -> int:
    return request.seq if request.seq is not None else -1


def _rank(request: Request) -> tuple[int, int]:
    return request.rank
