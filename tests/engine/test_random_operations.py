"""Tests of the engine with random requests, failures, interrupts and cancels, over a scripted context."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from helpers.engines import EngineHarness
from helpers.scripted import SeededContext
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.request import Request
from pymtp.errors import ClosedError, InvalidRequestError, NativeError

PROMPT = [1, 2, 3, 4, 5]


class CheckedHarness(EngineHarness):
    """An EngineHarness that checks the state of all requests after each step."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ends: Counter[int] = Counter()
        start = self.engine.scheduler.start

        def checked_start(request: Request, seq: int) -> None:
            assert not request.ended
            # a preempted stream is added to the queue only when it is read again
            queue = [one for one in self.engine.scheduler if one.seq is None and not (one.preempted and one.paused)]
            assert request.rank == min(one.rank for one in queue)
            assert all(one.seq != seq for one in self.requests)
            start(request, seq)

        self.engine.scheduler.start = checked_start  # type: ignore[method-assign]

    def submit(self, *arguments: Any, **keywords: Any) -> Request:
        request = super().submit(*arguments, **keywords)
        finish = request.finish

        def counting_finish(reason: Any) -> None:
            self.ends[request.number] += 1
            finish(reason)

        request.finish = counting_finish  # type: ignore[method-assign]
        return request

    def check_state(self) -> None:
        running = [request for request in self.requests if request.seq is not None]
        taken = [request.seq for request in running]
        assert len(set(taken)) == len(taken)
        assert sorted([*taken, *self.engine.scheduler.free]) == list(range(self.context.n_seq_max))
        assert running == sorted(self.engine.scheduler.running, key=self.requests.index)
        for request in self.requests:
            assert self.ends[request.number] == request.ended
            assert request.waiter.n_unfinished == 1 - request.ended
            if request.decode_state is not None and request.seq is not None:
                assert self.context.tokens(request.seq) == request.prompt + request.tokens[:-1]


request_plans = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 9), min_size=1, max_size=50),
        "max_tokens": st.integers(1, 30),
        "seed": st.integers(0, 5),
        "priority": st.integers(-1, 1),
        "draft_tokens": st.one_of(st.none(), st.integers(0, 4)),
        "max_unread": st.one_of(st.none(), st.integers(1, 3)),
    }
)
operations = st.one_of(
    request_plans,
    st.tuples(st.just("cancel"), st.integers(0, 11)),
    st.tuples(st.just("read"), st.integers(0, 11)),
    st.tuples(st.sampled_from(["call fails", "late cancel", "sequence fails", "cancel all"]), st.integers(0, 4)),
    st.just("step"),
    st.just("step"),
)


@given(st.lists(operations, min_size=1, max_size=60), st.integers(1, 4), st.integers(0, 4))
def test_each_request_ends_once_and_starts_in_order_under_random_operations(
    plan: list[Any], n_seq_max: int, depth: int
) -> None:
    harness = CheckedHarness(depth=depth, n_ctx=96, n_seq_max=n_seq_max, hits=[True, False, True, True])
    planned: dict[str, int] = {}
    affected: set[int] = set()  # numbers of requests that may fail or be cancelled

    def requests_in(seqs: Sequence[int]) -> list[Request]:
        return [request for request in harness.requests if request.seq in seqs]

    def before(what: str, seqs: Sequence[int]) -> None:
        for kind in ("call fails", "late cancel"):
            if kind in planned:
                planned[kind] -= 1
                if planned[kind] < 0:
                    del planned[kind]
                    if kind == "late cancel":
                        raise harness.late_cancel()
                    affected.update(request.number for request in requests_in(seqs))
                    raise NativeError("on purpose")

    def sequence_error(seq: int) -> Exception | None:
        if "sequence fails" in planned:
            planned["sequence fails"] -= 1
            if planned["sequence fails"] < 0:
                del planned["sequence fails"]
                affected.update(request.number for request in requests_in([seq]))
                return InvalidRequestError("on purpose")
        return None

    harness.context.before, harness.context.sequence_error = before, sequence_error
    for operation in plan:
        if isinstance(operation, dict):
            harness.submit(**operation)
        elif operation != "step":
            what, n = operation
            if what == "cancel all":
                affected.update(request.number for request in harness.requests)
                harness.context.cancel()
            elif what not in ("cancel", "read"):
                planned.setdefault(what, n)
            elif n < len(harness.requests):
                request = harness.requests[n]
                if what == "cancel":
                    affected.add(request.number)
                    harness.engine.cancel(request)
                else:
                    request.unread.clear()
        harness.engine.step()
        harness.check_state()
    harness.context.before = lambda what, seqs: None
    planned.clear()
    harness.run()
    harness.check_state()
    harness.check()
    assert all(harness.ends[request.number] == 1 for request in harness.requests)
    assert all(request.finish_reason == "length" for request in harness.requests if request.number not in affected)


def test_request_that_is_cancelled_while_the_engine_receives_it_ends_once() -> None:
    """Submit and cancel a request while the engine takes requests from their queue, as another thread might."""

    class BusyContext(SeededContext):
        on_poll: Any = None

        @property
        def cancelled(self) -> bool:
            call, self.on_poll = self.on_poll, None
            if call is not None:
                call()
            return False

        @cancelled.setter
        def cancelled(self, value: bool) -> None: ...

    harness = CheckedHarness(n_seq_max=2)
    harness.engine.runner.context = context = BusyContext(n_seq_max=2)  # type: ignore[assignment]
    other = harness.submit(PROMPT, 5)
    context.on_poll = lambda: harness.engine.cancel(harness.submit(PROMPT, 5, seed=1))
    harness.engine.process_queues()
    harness.run()
    for _ in range(5):
        harness.engine.step()
    assert harness.ends == {0: 1, 1: 1}
    assert [request.waiter.n_unfinished for request in harness.requests] == [0, 0]
    assert other.finish_reason == "length"


def test_close_ends_streams_and_requests_that_wait_and_lets_the_others_run() -> None:
    harness = CheckedHarness(n_seq_max=2)
    running, stream = harness.submit(PROMPT, 30), harness.submit(PROMPT, 30, max_unread=2)
    harness.engine.step()
    waiting = harness.submit(PROMPT, 30)
    harness.engine.process_queues()
    new = harness.submit(PROMPT, 30)
    harness.engine.close(ClosedError("the LLM is closed"))
    late = harness.submit(PROMPT, 30)
    assert [type(request.error) for request in (stream, waiting, new, late)] == [ClosedError] * 4
    assert harness.engine.figures().waiting == 0
    while not running.ended:
        harness.engine.step()
    assert running.finish_reason == "length"


def test_idle_engine_keeps_no_ended_request() -> None:
    harness = EngineHarness()
    request = harness.submit(PROMPT, 5)
    harness.run()
    harness.engine.cancel(request)  # as the destructor of a stream does
    harness.requests.clear()
    reference = weakref.ref(request)
    del request
    gc.collect()
    assert reference() is None
