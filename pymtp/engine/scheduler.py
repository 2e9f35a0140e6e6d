"""Who runs next: first come, first served, within priorities."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

from pymtp.engine.request import Request
from pymtp.errors import ContextFullError

# Pieces of a stream that may wait for their reader, before others go on without it.
READ_AHEAD = 4

# What a move costs, in launches: so many tokens are copied, or read of a prompt that is asked for again, in the time
# of one. docs/tuning.md has the measurements.
COPIED_A_ROUND = 2048
LOST_A_ROUND = 8


class Scheduler:
    """Which requests have a sequence of the context, and which wait for one.

    A request keeps its sequence to its end. Where others wait, a stream whose reader does not take its pieces gives way
    once: it begins anew when its reader is back, and writes the same. From then on it writes ahead where others wait.
    """

    def __init__(self, n_seq_max: int, n_ctx: int) -> None:
        self._n_ctx = n_ctx
        self._free = list(range(n_seq_max))  # rising: the native side wants sequences that follow each other
        self._waiting: list[tuple[tuple[int, int], Request]] = []  # a heap
        self._away: list[Request] = []  # streams that gave way, whose readers are not back
        self.running: list[Request] = []  # by sequence

    def check(self, prompt: Sequence[int]) -> None:
        """Raises ContextFullError for a prompt that no wait makes room for."""
        if len(prompt) > self._n_ctx:
            raise ContextFullError(f"the prompt has {len(prompt)} tokens, n_ctx is {self._n_ctx}")

    def __iter__(self) -> Iterator[Request]:
        """All requests, in no order."""
        yield from [*self.running, *(request for _, request in self._waiting), *self._away]

    @property
    def n_waiting(self) -> int:
        """Requests that wait for a sequence, or for their readers to want one."""
        return len(self._waiting) + len(self._away)

    @property
    def idle(self) -> bool:
        """Whether all requests, if there are any, write streams that their readers do not take."""
        paused = all(request.paused and request.writer is not None for request in self.running)
        return paused and not self._waiting and all(request.paused for request in self._away)

    @property
    def free(self) -> Sequence[int]:
        """Sequences that no request has, rising."""
        return self._free

    def add(self, request: Request) -> None:
        """A request that has no sequence yet, or no longer."""
        if request.gave_way and request.paused:
            self._away.append(request)
        else:
            heapq.heappush(self._waiting, (request.rank, request))

    def call_back(self) -> None:
        """Streams that gave way wait for a sequence again where their readers are back."""
        away, self._away = self._away, []
        for request in away:
            self.add(request)

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
            self._away = [one for one in self._away if one is not request]
        else:
            self._free = sorted([*self._free, request.seq])
            request.seq = None
            self.running = [one for one in self.running if one is not request]

    # ── Gaps ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_gap(self) -> bool:
        """Whether there is a free sequence between those that run: a launch takes sequences that lie side by side."""
        running = self.running
        return len(running) > 1 and _sequence(running[-1]) - _sequence(running[0]) >= len(running)

    def moves(self, worth: Callable[[int], int]) -> list[tuple[Request, int]]:
        """Which requests are to move to which free sequences so that all lie side by side; none where it does not pay.

        It pays where the requests on either side of the gap go on for more rounds than the moves cost. worth: tokens
        that a free sequence holds and a prompt may begin with, which are lost when another moves there.
        """
        n = len(self.running)
        least, moved, places = math.inf, self.running, range(0)
        for first in range(len(self._free) + 1):
            those = range(first, first + n)
            outside = [request for request in self.running if request.seq not in those]
            cost = sum(1 + request.n_held / COPIED_A_ROUND for request in outside)
            cost += sum(worth(seq) / LOST_A_ROUND for seq in self._free if seq in those)
            if cost < least:
                least, moved, places = cost, outside, those
        stay = [request for request in self.running if request not in moved]
        if least >= min(max(map(self._rounds_left, side), default=0.0) for side in (moved, stay)):
            return []
        return list(zip(reversed(moved), (seq for seq in self._free if seq in places), strict=True))

    def _rounds_left(self, request: Request) -> float:
        """By the rounds that its tokens took so far."""
        left = request.most(self._n_ctx) - len(request.tokens)
        return left * max(1, request.tally.rounds) / max(1, len(request.tokens) - 1)

    def move(self, request: Request, seq: int) -> None:
        """A running request goes to a free sequence."""
        self._free = sorted([*(one for one in self._free if one != seq), _sequence(request)])
        request.seq = seq
        if request.writer is not None:
            request.writer.seq = seq
        self.running = sorted(self.running, key=_sequence)

    # ── Who goes on ─────────────────────────────────────────────────────────────────────────────────────────────────

    def give_way(self) -> Request | None:
        """The stream that is to make room for one that waits, if there is one."""
        if self._free or not self._waiting:
            return None
        priority = self._waiting[0][1].priority
        paused = [r for r in self.running if r.paused and not r.gave_way and r.priority >= priority]
        return max(paused, key=_rank, default=None)

    def writing(self) -> list[Request]:
        """The requests of the next round, by sequence. Streams whose readers do not take their pieces are among them
        where others wait for their sequences: they give way no more, and come to their ends."""
        waited_for = bool(self._waiting)
        return [one for one in self.running if one.writer is not None and (waited_for or not one.paused)]

    def reading(self) -> list[Request]:
        """The requests that do not write yet, in their order."""
        return sorted((one for one in self.running if one.writer is None), key=_rank)


def _sequence(request: Request) -> int:
    return request.seq if request.seq is not None else -1


def _rank(request: Request) -> tuple[int, int]:
    return request.rank
