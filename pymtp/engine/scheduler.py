"""The order of requests: by priority, then clients and their calls in turn."""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias, TypeVar

from pymtp.engine.request import Caller, Request

T = TypeVar("T")
# The pieces of a stream that may wait for its reader before the stream pauses.
MAX_UNREAD_PIECES = 16

# The cost of moving a request to another sequence, measured in rounds. Copying COPIED_TOKENS_PER_ROUND tokens takes as
# long as one round. Cached tokens that the target sequence loses may be needed by a later prompt: losing
# LOST_TOKENS_PER_ROUND of them costs as much as one round. docs/developers/tuning.md has the measurements.
COPIED_TOKENS_PER_ROUND = 2048
LOST_TOKENS_PER_ROUND = 8


Heap: TypeAlias = list[tuple[tuple[int, int], Request]]  # requests by their ranks


class _Level:
    """The waiting requests of one priority.

    restarted: requests that had a sequence already, and lost it by no fault of their readers: they come first.
    clients: for each client the requests of its calls; clients and calls are in the order of their next turns.
    """

    def __init__(self) -> None:
        self.restarted: Heap = []
        self.clients: OrderedDict[str, OrderedDict[object, Heap]] = OrderedDict()

    def heaps(self) -> Iterator[Heap]:
        yield self.restarted
        yield from chain.from_iterable(calls.values() for calls in self.clients.values())


class WaitingRequests:
    """The requests that wait for a sequence.

    Among requests of the same priority, clients get sequences in turn, then the calls of a client in turn, then the
    requests of a call in their order. So a call with thousands of prompts delays other calls by one request at a time.

    levels: the requests by priority; empty if none waits.
    """

    def __init__(self) -> None:
        self.levels: dict[int, _Level] = {}

    def __iter__(self) -> Iterator[Request]:
        for level in self.levels.values():
            for heap in level.heaps():
                yield from (request for _, request in heap)

    def push(self, request: Request) -> None:
        """Add a request."""
        level, caller = self.levels.setdefault(request.priority, _Level()), request.caller
        heap = level.restarted
        if request.preempted or not request.had_sequence:
            heap = level.clients.setdefault(caller.client, OrderedDict()).setdefault(caller.call, [])
        heapq.heappush(heap, (request.rank, request))

    @property
    def first_priority(self) -> int:
        """Return the priority of the request whose turn it is. Some request must wait."""
        return min(self.levels)

    def first(self, n_running: Mapping[object, int]) -> Request:
        """Return the request whose turn it is. Some request must wait.

        n_running: the running requests of each client and each call; those with the fewest come first.
        """
        level = self.levels[self.first_priority]
        if level.restarted:
            return level.restarted[0][1]
        calls = level.clients[_next_turn(level.clients, n_running)]
        return calls[_next_turn(calls, n_running)][0][1]

    def remove(self, request: Request, *, turns: bool = False) -> None:
        """Remove a request, if it waits. turns: its call and its client get their next turns after others."""
        level = self.levels.get(request.priority)
        if level is not None and turns and request.caller.call in level.clients.get(request.caller.client, ()):
            level.clients[request.caller.client].move_to_end(request.caller.call)
            level.clients.move_to_end(request.caller.client)
        for heap in () if level is None else (level.restarted, self._heap_of_call(level, request.caller)):
            if heap and heap[0][1] is request:
                heapq.heappop(heap)
            else:
                heap[:] = [entry for entry in heap if entry[1] is not request]
                heapq.heapify(heap)
        if level is not None:
            self._drop_empty(request)

    @staticmethod
    def _heap_of_call(level: _Level, caller: Caller) -> Heap:
        calls = level.clients.get(caller.client)
        return [] if calls is None else calls.get(caller.call, [])

    def _drop_empty(self, request: Request) -> None:
        """Forget the call, the client and the priority of a request if no other requests of theirs wait."""
        level, caller = self.levels[request.priority], request.caller
        calls = level.clients.get(caller.client)
        if calls is not None and not calls.get(caller.call, True):
            del calls[caller.call]
            if not calls:
                del level.clients[caller.client]
        if not level.clients and not level.restarted:
            del self.levels[request.priority]


class Scheduler:
    """The queues of an engine: requests that have a sequence of the context, and requests that wait for one.

    A request keeps its sequence to its end, with two exceptions. If other requests wait, one that waits for its images
    to be encoded gives its sequence up until they are; at most as many as there are sequences do so at a time. And a
    stream pauses while its reader does not read. If other requests wait, a paused stream is preempted: it loses its
    sequence, restarts when its reader continues to read, and writes the same output. A stream is preempted only once.
    After that it does not pause while other requests wait, but buffers its output.
    """

    def __init__(self, n_seq_max: int, n_ctx: int) -> None:
        self._n_seq_max, self._n_ctx = n_seq_max, n_ctx
        self.forget_all()

    def forget_all(self) -> None:
        """Forget all requests: all sequences are free."""
        self._free = list(range(self._n_seq_max))  # in rising order, so that sequences are given out without gaps
        self._waiting = WaitingRequests()
        self._n_running: Counter[object] = Counter()  # running requests, by client and by call
        # requests without a sequence: streams that wait for their readers, and those that wait for images
        self._preempted: list[Request] = []
        self.running: list[Request] = []  # in the order of their sequences
        self._shortest_first = False  # whether the last step prefilled the shortest prompt first

    def __iter__(self) -> Iterator[Request]:
        """Iterate over all requests, in no particular order."""
        yield from [*self.running, *self._waiting, *self._preempted]

    @property
    def has_waiting(self) -> bool:
        """Return whether there are requests without a sequence."""
        return bool(self._waiting.levels or self._preempted)

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do: all requests, if there are any, are paused streams."""
        paused = all(request.paused and request.decode_state is not None for request in self.running)
        return paused and not self._waiting.levels and all(request.paused for request in self._preempted)

    @property
    def free(self) -> Sequence[int]:
        """Return the sequences that no request has, in rising order."""
        return self._free

    def add(self, request: Request) -> None:
        """Add a request without a sequence."""
        if (request.preempted and request.paused) or request.waits_for_images:
            self._preempted.append(request)
        else:
            self._waiting.push(request)

    def requeue_preempted(self) -> None:
        """Let those wait again that lost their sequences, and whose readers go on, or whose images are encoded."""
        preempted, self._preempted = self._preempted, []
        for request in preempted:
            self.add(request)

    def next_waiting(self) -> Request | None:
        """Return the next request to get a sequence; None if no sequence is free, or no request waits."""
        return self._waiting.first(self._n_running) if self._waiting.levels and self._free else None

    def start(self, request: Request, seq: int) -> None:
        """Give a free sequence to the request that `next_waiting` returned."""
        self._waiting.remove(request, turns=True)
        self._n_running.update((request.caller.client, request.caller.call))
        self._free.remove(seq)
        request.seq = seq
        self.running = sorted([*self.running, request], key=_sequence)

    def remove(self, request: Request) -> None:
        """Remove a request, and free its sequence."""
        if request.seq is None:
            self._waiting.remove(request)
            self._preempted = [other for other in self._preempted if other is not request]
        else:
            self._n_running.subtract((request.caller.client, request.caller.call))
            self._n_running += Counter()  # without zeros
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
        """Return the request to preempt for a waiting one; None if there is none, or no request waits.

        It waits for images, or else it is a paused stream.
        """
        if self._free or not self._waiting.levels:
            return None
        priority = self._waiting.first_priority
        if sum(r.waits_for_images for r in self._preempted) < self._n_seq_max:
            waiting = [r for r in self.running if r.waits_for_images and r.priority >= priority]
            if waiting:
                return max(waiting, key=_rank)
        paused = [r for r in self.running if r.paused and not r.preempted and r.priority >= priority]
        return max(paused, key=_rank, default=None)

    def decoding(self) -> list[Request]:
        """Return the requests of the next round, in the order of their sequences.

        Paused streams take part only if other requests wait for a sequence: streams that cannot be preempted again
        then decode to their ends.
        """
        has_waiting = bool(self._waiting.levels)
        return [r for r in self.running if r.decode_state is not None and (has_waiting or not r.paused)]

    def prefilling(self) -> list[Request]:
        """Return the running requests that do not decode yet, in the order in which the next step prefills them.

        They are in the order of their ranks. But in every second step, of the clients' first requests, the one with the
        fewest tokens left comes first: a short prompt waits for its own length of another client's long prompt, which
        is prefilled at half of its speed meanwhile. Long prompts of the same length are prefilled one after the other.
        """
        requests = sorted((request for request in self.running if request.decode_state is None), key=_rank)
        self._shortest_first = not self._shortest_first
        if self._shortest_first and len(requests) > 1:
            first: dict[str, Request] = {}
            for request in requests:
                if request.priority == requests[0].priority:
                    first.setdefault(request.caller.client, request)
            shortest = min(first.values(), key=lambda request: len(request.prompt) - request.n_prefilled)
            requests.remove(shortest)
            requests.insert(0, shortest)
        return requests


def _next_turn(waiting: Iterable[T], n_running: Mapping[object, int]) -> T:
    """Return the first of those with the fewest running requests. Ends early: few have running requests."""
    least = None
    for one in waiting:
        n = n_running.get(one, 0)
        if not n:
            return one
        if least is None or n < least[0]:
            least = n, one
    assert least is not None
    return least[1]


def _sequence(request: Request) -> int:
    return request.seq if request.seq is not None else -1


def _rank(request: Request) -> tuple[int, int]:
    return request.rank
