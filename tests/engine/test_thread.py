"""Tests of the engine's thread: requests and calls of many threads end, over a scripted context without a model."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from helpers.engines import EngineHarness
from helpers.interrupts import InterruptAtLine
from helpers.scripted import SeededContext
from helpers.threads import run_in_threads

from pymtp.engine.request import Request, Waiter
from pymtp.engine.stream import Stream
from pymtp.engine.thread import EngineThread
from pymtp.engine.warm_up import WarmUp
from pymtp.errors import ClosedError, InvalidRequestError, NativeError

PROMPT = [1, 2, 3, 4, 5]
PATIENCE = 60  # seconds to wait for events that should happen at once, until the test fails


class ClosableContext(SeededContext):
    """A scripted context with the methods by which an EngineThread closes it."""

    closed = False
    in_call_of_this_thread = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class ThreadedHarness:
    """An engine over a scripted context, and its thread."""

    def __init__(self, **context: Any) -> None:
        self.harness = EngineHarness(context_type=ClosableContext, **context)
        self.context: Any = self.harness.context
        self.warm_up = WarmUp(self.harness.depth, (), done=True)
        self.thread = EngineThread(self.harness.engine, self.context, self.warm_up, ())

    def make(self, n: int, seed: int = 0, waiter: Waiter | None = None, **options: Any) -> Request:
        """Make a request that was not submitted."""
        return self.harness.make(PROMPT, n, seed=seed, waiter=waiter, **options)

    def run(self, n: int, seed: int = 0) -> Request:
        """Run a request of n tokens to its end."""
        request = self.make(n, seed)
        self.thread.run([request], request.waiter)
        return request


@pytest.fixture
def threaded() -> Iterator[ThreadedHarness]:
    made = ThreadedHarness(n_seq_max=3)
    yield made
    made.context.before = lambda what, seqs: None
    made.thread.cancel_all()
    made.thread.close()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_requests_of_many_threads_share_rounds_and_all_end(threaded: ThreadedHarness) -> None:
    rows: list[int] = []
    threaded.context.before = lambda what, seqs: (rows.append(len(seqs)), time.sleep(0.001))
    run_in_threads(*(lambda seed=seed: threaded.run(40, seed) for seed in range(12)))  # type: ignore[misc]
    assert [request.finish_reason for request in threaded.harness.requests] == ["length"] * 12
    assert max(rows) == 3
    threaded.harness.check()


def test_steps_and_calls_run_on_one_thread_that_starts_with_the_first_request(threaded: ThreadedHarness) -> None:
    before = threading.active_count()
    idents: list[int] = []
    threaded.context.before = lambda what, seqs: idents.append(threading.get_ident())
    assert threading.active_count() == before
    threaded.run(5)
    idents.append(threaded.thread.call(threading.get_ident))
    threaded.run(5, 1)
    assert len(set(idents)) == 1
    assert threading.get_ident() not in idents
    assert threading.active_count() == before + 1


def test_idle_thread_makes_no_steps(threaded: ThreadedHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    threaded.run(5)
    wait_until(lambda: not threaded.thread._busy)  # the request has ended in the last step, and the thread waits soon
    steps: list[object] = []
    monkeypatch.setattr(threaded.harness.engine, "step", lambda: steps.append(None))
    monkeypatch.setattr(threaded.harness.engine, "process_queues", lambda: steps.append(None))
    time.sleep(0.1)
    assert steps == []


def test_call_runs_between_two_steps_and_raises_its_error(threaded: ThreadedHarness) -> None:
    in_step: list[bool] = []

    def before(what: str, seqs: object) -> None:
        in_step.append(True)
        time.sleep(0.0005)

    threaded.context.before = before
    step = threaded.harness.engine.step

    def watched() -> bool:
        in_step.clear()
        worked = step()
        in_step.clear()
        return worked

    threaded.harness.engine.step = watched  # type: ignore[method-assign]
    stream = Stream(None, threaded.thread, threaded.make(900, max_unread=900))
    next(stream)
    assert [threaded.thread.call(lambda: list(in_step)) for _ in range(20)] == [[]] * 20
    with pytest.raises(ZeroDivisionError):
        threaded.thread.call(lambda: 1 // 0)
    stream.close()


def test_stream_that_is_not_read_costs_no_steps(threaded: ThreadedHarness) -> None:
    stream = Stream(None, threaded.thread, threaded.make(500, max_unread=4))
    wait_until(lambda: len(stream._request.unread) == 4)
    wait_until(lambda: not threaded.thread._busy)
    calls = len(threaded.context.calls)
    assert threaded.run(10, 1).finish_reason == "length"
    assert all(0 not in seqs for _, seqs, _ in threaded.context.calls[calls:])  # the sequence of the stream
    assert sum(len(piece.token_ids) for piece in stream) == 500
    threaded.harness.check()


def test_call_on_the_engines_thread_is_refused(threaded: ThreadedHarness) -> None:
    refused: list[bool] = []

    def nested() -> None:
        request = threaded.make(3, 1)
        for call in (lambda: threaded.thread.run([request], request.waiter), lambda: threaded.thread.call(list)):
            with pytest.raises(InvalidRequestError, match="this thread is in a call of the LLM"):
                call()
        refused.append(True)

    threaded.thread.call(nested)
    assert refused == [True]


def test_close_waits_for_running_requests_and_frees_the_context() -> None:
    threaded = ThreadedHarness(n_seq_max=2)
    threaded.context.before = lambda what, seqs: time.sleep(0.001)
    results: list[object] = []

    def work(seed: int) -> None:
        try:
            results.append(threaded.run(60, seed).finish_reason)
        except ClosedError as error:
            results.append(type(error))

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: threaded.harness.engine.figures().running == 2)
    waiting = threaded.make(10, 9)
    threaded.thread.submit([waiting])
    threaded.thread.close()
    assert threaded.context.closed
    for thread in threads:
        thread.join(PATIENCE)
    assert results == ["length", "length"]
    assert isinstance(waiting.error, ClosedError)
    for call in (lambda: threaded.run(1, 7), lambda: threaded.thread.call(list)):
        with pytest.raises(ClosedError, match="the LLM is closed"):
            call()
    threaded.thread.close()


def test_calls_and_requests_that_meet_a_close_end() -> None:
    for _ in range(30):
        threaded = ThreadedHarness(n_seq_max=1)
        ends: list[object] = []

        def work(call: Callable[[], object], ends: list[object] = ends) -> None:
            try:
                while True:
                    call()
            except ClosedError as error:
                ends.append(error)

        run_in_threads(
            lambda: work(lambda: threaded.thread.call(list)),  # noqa: B023
            lambda: work(lambda: threaded.run(3)),  # noqa: B023
            lambda: work(lambda: next(Stream(None, threaded.thread, threaded.make(9, max_unread=2)))),  # noqa: B023
            lambda: threaded.thread.close(),  # noqa: B023
        )
        assert len(ends) == 3


def test_unexpected_error_ends_all_requests_and_the_thread_goes_on(
    threaded: ThreadedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def no_memory(what: str, seqs: object) -> None:
        raise MemoryError

    threaded.context.before = no_memory
    assert isinstance(threaded.run(5).error, NativeError)
    assert [each.exc_type for each in told] == [MemoryError]
    threaded.context.before = lambda what, seqs: None
    assert threaded.run(5, 1).finish_reason == "length"


def test_interrupt_at_any_line_cancels_the_request_and_harms_no_other(threaded: ThreadedHarness) -> None:
    cancelled, harness = 0, threaded.harness
    for n in range(10_000):
        harness.requests.clear()
        other, later = threaded.make(30, 1), threaded.make(4, 2)
        threaded.thread.submit([other])
        mine = threaded.make(40, 3)
        completed = False
        with suppress(KeyboardInterrupt), InterruptAtLine(n, "/pymtp/engine/thread.py", "/pymtp/engine/request.py"):
            threaded.thread.run([mine], mine.waiter)
            completed = True
        threaded.thread.run([later], later.waiter)
        threaded.thread.wait(other.waiter, [], lambda: other.ended)  # noqa: B023
        assert (other.finish_reason, later.finish_reason) == ("length", "length"), n
        wait_until(lambda: mine.ended or not mine.arrival_time)  # noqa: B023
        assert mine.finish_reason in ("cancelled", "length", None)
        cancelled += mine.finish_reason == "cancelled"
        assert not threaded.thread._wait.begun
        if completed:
            assert cancelled
            return
    raise AssertionError("the test did not reach the last line")


def test_interrupted_start_of_the_thread_leaves_one_thread(
    threaded: ThreadedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    before = [one.name for one in threading.enumerate()].count("pymtp engine")  # of other tests' LLMs

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        monkeypatch.setattr(threading.Thread, "start", start)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threaded.run(5)
    assert threaded.run(5, 1).finish_reason == "length"
    wait_until(lambda: [one.name for one in threading.enumerate()].count("pymtp engine") == before + 1)


def test_stream_goes_on_after_a_reader_was_interrupted_when_it_had_taken_a_piece(threaded: ThreadedHarness) -> None:
    stream = Stream(None, threaded.thread, threaded.make(200, max_unread=4))
    wait_until(lambda: len(stream._request.unread) == 4 and not threaded.thread._busy)
    taken = [stream._request.unread.popleft() for _ in range(4)]  # nobody wakes the engine
    read = [token for piece in [*taken, *stream] for token in piece.token_ids]
    assert len(read) == 200


def test_thread_survives_an_excepthook_that_raises(threaded: ThreadedHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(threading, "excepthook", fails)
    threaded.context.before = fails
    assert isinstance(threaded.run(5).error, NativeError)
    threaded.context.before = lambda what, seqs: None
    assert threaded.run(5, 1).finish_reason == "length"


def test_requests_end_even_if_the_cache_cannot_be_read_again(
    threaded: ThreadedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(threaded.context, "tokens", no_memory)
    threaded.run(5)
    threaded.context.before = no_memory
    request = threaded.make(5, 1)
    threaded.thread.submit([request])
    wait_until(lambda: request.ended)
    assert isinstance(request.error, NativeError)
    threaded.context.before = lambda what, seqs: None
    assert threaded.run(5, 2).finish_reason == "length"


def test_request_that_came_while_all_requests_failed_does_not_run_after_its_end() -> None:
    harness = EngineHarness()
    recover = harness.engine.prefix_cache.recover
    late: list[Request] = []

    def meets_a_request() -> None:
        late.append(harness.submit(PROMPT, 30))
        recover()

    harness.engine.prefix_cache.recover = meets_a_request  # type: ignore[method-assign]
    harness.engine.fail_all(NativeError("on purpose"))
    harness.engine.step()
    assert isinstance(late[0].error, NativeError)
    assert (late[0].tokens, harness.engine.idle) == ([], True)


def test_failed_call_keeps_no_object_alive(threaded: ThreadedHarness) -> None:
    class Held:
        def fail(self) -> None:
            raise ValueError

    held = Held()
    reference = weakref.ref(held)
    gc.collect()
    gc.disable()
    try:
        with suppress(ValueError):
            threaded.thread.call(held.fail)
        del held
        wait_until(lambda: not threaded.thread._busy)
        assert reference() is None
    finally:
        gc.enable()
