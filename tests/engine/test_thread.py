"""Tests of threads that share an engine: all their requests end, over a scripted context without a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from helpers.engines import EngineHarness
from helpers.interrupts import InterruptAtLine

import pymtp.engine.thread
from pymtp.engine.request import Request, Waiter
from pymtp.engine.thread import EngineRunner
from pymtp.native.locking import Exclusive

PROMPT = [1, 2, 3, 4, 5]
PATIENCE = 60  # seconds to wait for events that should happen at once, until the test fails


class Owner(Exclusive):
    """An object with a lock and without native state."""

    def cancel(self) -> None: ...
    def _free(self) -> None: ...


class ThreadedHarness:
    """An engine, and threads that each wait for a request."""

    def __init__(self, **context: object) -> None:
        self.harness = EngineHarness(**context)
        self.runner, self.owner = EngineRunner(self.harness.engine), Owner()

    def thread(self, request: Request) -> threading.Thread:
        thread = threading.Thread(
            target=self.runner.run_until,
            args=(self.owner, request.waiter, [request], lambda: request.ended),
            daemon=True,
        )
        thread.start()
        return thread

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_threads_that_start_together_do_not_wait_for_each_others_requests() -> None:
    """Start threads that all wait for the owner's lock. The first thread to get the lock has a long request."""
    threaded = ThreadedHarness(n_seq_max=3)
    requests = [threaded.harness.submit(PROMPT, n, seed=n) for n in (900, 900, 2)]
    *long, short = requests
    returned = []

    def before(what: str, seqs: Sequence[int]) -> None:
        if short.ended and not returned:
            threads[2].join(PATIENCE)
            returned.append(not threads[2].is_alive())

    threaded.harness.context.before = before
    with threaded.owner._lock:
        threads = [threaded.thread(request) for request in requests]
        threaded.until(lambda: len(threaded.runner._next) == 3)  # all three threads wait for the lock
    for thread in threads:
        thread.join(PATIENCE)
    assert returned == [True]
    assert [request.finish_reason for request in requests] == ["length"] * 3
    assert len(long[0].tokens) == 900


class LateWaiter(Waiter):
    """A waiter whose thread takes a while to run after it was notified."""

    waiting = True  # type: ignore[assignment]

    def __init__(self, until: threading.Event) -> None:
        super().__init__()
        self.until = until

    def wait(self, ready: Callable[[], object], timeout: float) -> bool:
        notified = super().wait(ready, timeout)
        return self.until.wait(PATIENCE) and notified


def test_woken_thread_whose_request_has_ended_wakes_the_next_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pymtp.engine.thread, "POLL_SECONDS", 10 * PATIENCE)
    threaded = ThreadedHarness(n_seq_max=3)
    first_left = threading.Event()
    requests = [
        threaded.harness.submit(PROMPT, 40),
        threaded.harness.submit(PROMPT, 40, seed=1, waiter=LateWaiter(first_left)),
        threaded.harness.submit(PROMPT, 200, seed=2),
    ]
    gate = threading.Semaphore(0)
    threaded.harness.context.before = lambda what, seqs: gate.acquire(timeout=PATIENCE) and gate.release()
    threads = []
    for n, request in enumerate(requests):  # the first thread runs the engine, the others wait in this order
        threads.append(threaded.thread(request))
        threaded.until(lambda: threaded.runner._running.locked() and len(threaded.runner._waiting) == n)  # noqa: B023
    gate.release()
    threads[0].join(PATIENCE)
    first_left.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert [request.finish_reason for request in requests] == ["length"] * 3
    threaded.harness.check()


def test_all_threads_that_share_an_engine_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymtp.engine.thread, "POLL_SECONDS", 10 * PATIENCE)
    for n_seq_max in (1, 3):
        for _ in range(10):
            threaded = ThreadedHarness(n_seq_max=n_seq_max)
            requests = [threaded.harness.submit(PROMPT, n, seed=n) for n in (40, 40, 40, 200, 200)]
            threads = [threaded.thread(request) for request in requests]
            for thread in threads:
                thread.join(PATIENCE)
            assert [request.finish_reason for request in requests] == ["length"] * 5
            threaded.harness.check()


def test_thread_that_never_runs_the_engine_does_not_block_others() -> None:
    threaded = ThreadedHarness()
    threaded.runner._next[0] = None  # the id of no thread, which may be left after two interrupts
    request = threaded.harness.submit(PROMPT, 30)
    threaded.thread(request).join(PATIENCE)
    assert request.finish_reason == "length"
    assert not threaded.runner._next


def test_interrupt_at_any_line_does_not_block_other_threads() -> None:
    completed, cancelled = False, 0
    for n in range(1000):
        threaded = ThreadedHarness(n_seq_max=2)
        mine, other, later = (threaded.harness.submit(PROMPT, length, seed=length) for length in (40, 30, 4))
        # slow, so that both threads want to run the engine
        threaded.harness.context.before = lambda what, seqs: time.sleep(0.0003)
        threads = [threaded.thread(other)]
        with suppress(KeyboardInterrupt), InterruptAtLine(n, "/pymtp/engine/thread.py", "/pymtp/native/locking.py"):
            threaded.runner.run_until(threaded.owner, mine.waiter, [mine], lambda: mine.ended)  # noqa: B023
            completed = True
        threads.append(threaded.thread(later))
        for thread in threads:
            thread.join(PATIENCE)
        assert (other.finish_reason, later.finish_reason) == ("length", "length")
        assert mine.finish_reason in ("cancelled", "length")  # a step that was running may have completed the request
        cancelled += mine.finish_reason == "cancelled"
        if completed:
            assert cancelled
            return
    raise AssertionError("the test did not reach the last line")
