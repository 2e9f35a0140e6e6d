"""The order of requests: first come, first served, within priorities."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

from pymtp.engine.request import Request

# The pieces of a stream that may wait for its reader before the stream pauses.
MAX_UNREAD_PIECES = 16

# The cost of moving a request to another sequence, measured in rounds. Copying COPIED_TOKENS_PER_ROUND tokens takes as
# long as one round. Cached tokens that the target sequence loses may be needed by a later prompt: losing
# LOST_TOKENS_PER_ROUND of them costs as much as one round. docs/tuning.md has the measurements.
COPIED_TOKENS_PER_ROUND = 2048
LOST_TOKENS_PER_ROUND = 8


class Scheduler:
    """The queues of an engine: requests that have a sequence of the context, and requests that wait for one.

    A request keeps its sequence to its end, with one exception. A stream pauses while its reader does not read. If
    other requests wait, a paused stream is preempted: it loses its sequence, restarts when its reader continues to
    read, and writes the same output. A stream is preempted only once. After that it does not pause while other
    requests wait, but buffers its output.
    """

    def __init__(self, n_seq_max: int, n_ctx: int) -> None:
        self._n_seq_max, self._n_ctx = n_seq_max, n_ctx
        self.forget_all()

    def forget_all(self) -> None:
        """Forget all requests: all sequences are free."""
        self._free = list(range(self._n_seq_max))  # in rising order, so that sequences are given out without gaps
        self._waiting: list[tuple[tuple[int, int], Request]] = []  # a heap, ordered by rank
        self._preempted: list[Request] = []  # streams without a sequence, which wait for their readers
        self.running: list[Request] = []  # in the order of their sequences

    def __iter__(self) -> Iterator[Request]:
        """Iterate over all requests, in no particular order."""
        yield from [*self.running, *(request for _, request in self._waiting), *self._preempted]

    @property
    def n_waiting(self) -> int:
        """Return the number of requests without a sequence."""
        return len(self._waiting) + len(self._preempted)

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do: all requests, if there are any, are paused streams."""
        paused = all(request.paused and request.decode_state is not None for request in self.running)
        return paused and not self._waiting and all(request.paused for request in self._preempted)

    @property
    def free(self) -> Sequence[int]:
        """Return the sequences that no request has, in rising order."""
        return self._free

    def add(self, request: Request) -> None:
        """Add a request without a sequence."""
        if request.preempted and request.paused:
            self._preempted.append(request)
        else:
            heapq.heappush(self._waiting, (request.rank, request))

    def requeue_preempted(self) -> None:
        """Move preempted streams whose readers have taken pieces again to the queue of waiting requests."""
        preempted, self._preempted = self._preempted, []
        for request in preempted:
            self.add(request)

    def next_waiting(self) -> Request | None:
        """Return the next request to get a sequence; None if no sequence is free, or no request waits."""
        return self._waiting[0][1] if self._waiting and self._free else None

    def start(self, request: Request, seq: int) -> None:
        """Give a free sequence to the request that `next_waiting` returned."""
        heapq.heappop(self._waiting)
        self._free.remove(seq)
        request.seq = seq
        self.running = sorted([*self.running, request], key=_sequence)

    def remove(self, request: Request) -> None:
        """Remove a request, and free its sequence."""
        if request.seq is None:
            self._waiting = [entry for entry in self._waiting if entry[1] is not request]
            heapq.heapify(self._waiting)
            self._preempted = [other for other in self._preempted if other is not request]
        else:
            self._free = sorted([*self._free, request.seq])
            request.seq = None
            self.running = [other for other in self.running if other is not request]

    # ── Gaps ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_gap(self) -> bool:
        """Return whether a free sequence lies between running ones: then a round takes more than one decode call."""
        running = self.running
        return len(running) > 1 and _sequence(running[-1]) - _sequence(running[0]) >= len(running)

    def plan_moves(self, reuse_value: Callable[[int], int]) -> list[tuple[Request, int]]:
        """Return requests, and the free sequences that they should move to, so that there are no gaps.

        Returns an empty list if moving does not pay. It pays if, both among the requests that move and among those that
        stay, one will run for more rounds than the moves cost.

        reuse_value: returns the number of cached tokens that a free sequence loses if a request moves there.
        """
        n_running = len(self.running)
        min_cost, moved, targets = math.inf, self.running, range(0)
        for first in range(len(self._free) + 1):
            window = range(first, first + n_running)
            outside = [request for request in self.running if request.seq not in window]
            cost = sum(1 + request.n_past / COPIED_TOKENS_PER_ROUND for request in outside)
            cost += sum(reuse_value(seq) / LOST_TOKENS_PER_ROUND for seq in self._free if seq in window)
            if cost < min_cost:
                min_cost, moved, targets = cost, outside, window
        unmoved = [request for request in self.running if request not in moved]
        if min_cost >= min(max(map(self._rounds_left, side), default=0.0) for side in (moved, unmoved)):
            return []
        return list(zip(reversed(moved), (seq for seq in self._free if seq in targets), strict=True))

    def _rounds_left(self, request: Request) -> float:
        """Estimate the rounds that a request will still take, from its tokens per round so far."""
        left = request.max_output_tokens(self._n_ctx) - len(request.tokens)
        return left * max(1, request.draft_stats.rounds) / max(1, len(request.tokens) - 1)

    def move(self, request: Request, seq: int) -> None:
        """Move a running request to a free sequence."""
        self._free = sorted([*(other for other in self._free if other != seq), _sequence(request)])
        request.seq = seq
        if request.decode_state is not None:
            request.decode_state.seq = seq
        self.running = sorted(self.running, key=_sequence)

    # ── Running requests ────────────────────────────────────────────────────────────────────────────────────────────

    def choose_preempted(self) -> Request | None:
        """Return the paused stream to preempt for a waiting request; None if there is none, or no request waits."""
        if self._free or not self._waiting:
            return None
        priority = self._waiting[0][1].priority
        paused = [r for r in self.running if r.paused and not r.preempted and r.priority >= priority]
        return max(paused, key=_rank, default=None)

    def decoding(self) -> list[Request]:
        """Return the requests of the next round, in the order of their sequences.

        Paused streams take part only if other requests wait for a sequence: streams that cannot be preempted again
        then decode to their ends.
        """
        has_waiting = bool(self._waiting)
        return [r for r in self.running if r.decode_state is not None and (has_waiting or not r.paused)]

    def prefilling(self) -> list[Request]:
        """Return the running requests that do not decode yet, in the order of their ranks."""
        return sorted((request for request in self.running if request.decode_state is None), key=_rank)


def _sequence(request: Request) -> int:
    return request.seq if request.seq is not None else -1


def _rank(request: Request) -> tuple[int, int]:
    return request.rank
