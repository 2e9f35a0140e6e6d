"""Claims about an engine whatever comes: requests, failures, interruptions, cancels at any moment. No model."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from helpers.engines import Bed
from helpers.scripted import PureContext
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.request import Request
from pymtp.errors import ClosedError, InvalidRequestError, NativeError, PymtpError

PROMPT = [1, 2, 3, 4, 5]


class Watched(Bed):
    """Looks after each step whether all is as it must be."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ends: Counter[int] = Counter()
        start = self.engine._scheduler.start

        def in_turn(request: Request, seq: int) -> None:
            assert not request.ended
            # a stream that gave way is out of the queue until it is read
            queue = [one for one in self.engine._scheduler if one.seq is None and not (one.gave_way and one.paused)]
            assert request.rank == min(one.rank for one in queue)
            assert all(one.seq != seq for one in self.requests)
            start(request, seq)

        self.engine._scheduler.start = in_turn  # type: ignore[method-assign]

    def submit(self, *arguments: Any, **keywords: Any) -> Request:
        request = super().submit(*arguments, **keywords)
        finish = request.finish

        def once(reason: Any) -> None:
            self.ends[request.number] += 1
            finish(reason)

        request.finish = once  # type: ignore[method-assign]
        return request

    def look(self) -> None:
        running = [request for request in self.requests if request.seq is not None]
        taken = [request.seq for request in running]
        assert len(set(taken)) == len(taken)
        assert sorted([*taken, *self.engine._scheduler.free]) == list(range(self.context.n_seq_max))
        assert running == sorted(self.engine._scheduler.running, key=self.requests.index)
        for request in self.requests:
            assert self.ends[request.number] == request.ended
            assert request.caller.unended == 1 - request.ended
            if request.writer is not None and request.seq is not None:
                assert self.context.tokens(request.seq) == request.prompt + request.tokens[:-1]


asked = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 9), min_size=1, max_size=50),
        "max_tokens": st.integers(1, 30),
        "seed": st.integers(0, 5),
        "priority": st.integers(-1, 1),
        "draft_tokens": st.one_of(st.none(), st.integers(0, 4)),
        "ahead": st.one_of(st.none(), st.integers(1, 3)),
    }
)
moments = st.one_of(
    asked,
    st.tuples(st.just("leave"), st.integers(0, 11)),
    st.tuples(st.just("read"), st.integers(0, 11)),
    st.tuples(st.sampled_from(["launch fails", "interrupt", "alone", "cancel all"]), st.integers(0, 4)),
    st.just("step"),
    st.just("step"),
)


@given(st.lists(moments, min_size=1, max_size=60), st.integers(1, 4), st.integers(0, 4))
def test_each_request_ends_once_in_its_turn_and_by_nothing_that_befell_another(
    plan: list[Any], n_seq_max: int, depth: int
) -> None:
    bed = Watched(depth=depth, n_ctx=96, n_seq_max=n_seq_max, hits=[True, False, True, True])
    planned: dict[str, int] = {}
    meant: set[int] = set()  # requests that may end otherwise than by themselves

    def of(seqs: Sequence[int]) -> list[Request]:
        return [request for request in bed.requests if request.seq in seqs]

    def before(what: str, seqs: Sequence[int]) -> None:
        for kind in ("launch fails", "interrupt"):
            if kind in planned:
                planned[kind] -= 1
                if planned[kind] < 0:
                    del planned[kind]
                    if kind == "interrupt":
                        raise KeyboardInterrupt
                    meant.update(request.number for request in of(seqs))
                    raise NativeError("on purpose")

    def alone(seq: int) -> Exception | None:
        if "alone" in planned:
            planned["alone"] -= 1
            if planned["alone"] < 0:
                del planned["alone"]
                meant.update(request.number for request in of([seq]))
                return InvalidRequestError("no way on")
        return None

    bed.context.before, bed.context.alone_fails = before, alone
    for moment in plan:
        if isinstance(moment, dict):
            bed.submit(**moment)
        elif moment != "step":
            what, n = moment
            if what == "cancel all":
                meant.update(request.number for request in bed.requests)
                bed.context.cancel()
            elif what not in ("leave", "read"):
                planned.setdefault(what, n)
            elif n < len(bed.requests):
                request = bed.requests[n]
                if what == "leave":
                    meant.add(request.number)
                    bed.engine.cancel(request)
                else:
                    request.unread.clear()
        try:
            bed.engine.step()
        except KeyboardInterrupt:
            bed.engine.settle()
        bed.look()
    bed.context.before = lambda what, seqs: None
    planned.clear()
    bed.run()
    bed.look()
    bed.check()
    assert all(bed.ends[request.number] == 1 for request in bed.requests)
    assert all(request.reason == "length" for request in bed.requests if request.number not in meant)


def test_a_request_that_is_cancelled_as_it_comes_ends_once() -> None:
    """Another thread submits and cancels while arrivals are taken in."""

    class Busy(PureContext):
        at_once: Any = None

        @property
        def cancelled(self) -> bool:
            come, self.at_once = self.at_once, None
            if come is not None:
                come()
            return False

        @cancelled.setter
        def cancelled(self, value: bool) -> None: ...

    bed = Watched(n_seq_max=2)
    bed.engine._context = context = Busy(n_seq_max=2)  # type: ignore[assignment]
    other = bed.submit(PROMPT, 5)
    context.at_once = lambda: bed.engine.cancel(bed.submit(PROMPT, 5, seed=1))
    bed.engine.settle()
    bed.run()
    for _ in range(5):
        bed.engine.step()
    assert bed.ends == {0: 1, 1: 1}
    assert [request.caller.unended for request in bed.requests] == [0, 0]
    assert other.reason == "length"


def test_a_request_that_comes_after_the_end_of_the_engine_ends_too() -> None:
    bed = Watched()
    early = bed.submit(PROMPT, 30)
    bed.engine.step()
    bed.engine.close(ClosedError("the LLM is closed"))
    late = bed.submit(PROMPT, 30)
    assert [type(request.failure()) for request in (early, late)] == [ClosedError, ClosedError]
    assert bed.engine.figures().waiting == 0
    assert isinstance(late.error, PymtpError)


def test_an_idle_engine_keeps_no_request_that_has_ended() -> None:
    bed = Bed()
    request = bed.submit(PROMPT, 5)
    bed.run()
    bed.engine.cancel(request)  # as a stream does that is let go of
    bed.requests.clear()
    kept = weakref.ref(request)
    del request
    gc.collect()
    assert kept() is None
