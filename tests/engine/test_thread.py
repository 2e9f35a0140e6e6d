"""Claims about threads that share an engine, over a scripted context: no model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from helpers.engines import Bed
from helpers.interrupts import Interrupted

import pymtp.engine.thread
from pymtp.engine.request import Caller, Request
from pymtp.engine.thread import Turns
from pymtp.native.locking import Exclusive

PROMPT = [1, 2, 3, 4, 5]
PATIENCE = 60  # seconds, of what is to happen at once


class Owner(Exclusive):
    """Has a lock, and nothing native."""

    def cancel(self) -> None: ...
    def _free(self) -> None: ...


class Table:
    """Threads that each wait for a request."""

    def __init__(self, **context: object) -> None:
        self.bed = Bed(**context)
        self.turns, self.owner = Turns(self.bed.engine), Owner()

    def thread(self, request: Request) -> threading.Thread:
        thread = threading.Thread(
            target=self.turns.wait, args=(self.owner, request.caller, [request], lambda: request.ended), daemon=True
        )
        thread.start()
        return thread

    def until(self, there: Callable[[], bool]) -> None:
        """Waits until threads came so far."""
        ends = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < ends
            time.sleep(0.001)


def test_of_threads_that_come_at_once_none_waits_for_another_to_end() -> None:
    """Both find that nobody runs the engine, and wait for the owner's lock: the first to get it has much to do."""
    table = Table(n_seq_max=3)
    requests = [table.bed.submit(PROMPT, n, seed=n) for n in (900, 900, 2)]
    *long, short = requests
    returned = []

    def before(what: str, seqs: Sequence[int]) -> None:
        if short.ended and not returned:
            threads[2].join(PATIENCE)
            returned.append(not threads[2].is_alive())

    table.bed.context.before = before
    with table.owner._lock:
        threads = [table.thread(request) for request in requests]
        table.until(lambda: len(table.turns._next) == 3)  # all wait for the lock
    for thread in threads:
        thread.join(PATIENCE)
    assert returned == [True]
    assert [request.reason for request in requests] == ["length"] * 3
    assert len(long[0].tokens) == 900


class Late(Caller):
    """Its thread takes a while to go on after it was told to."""

    waiting = True  # type: ignore[assignment]

    def __init__(self, until: threading.Event) -> None:
        super().__init__()
        self.until = until

    def wait(self, unless: Callable[[], object], seconds: float) -> bool:
        there = super().wait(unless, seconds)
        return self.until.wait(PATIENCE) and there


def test_a_thread_that_was_told_to_go_on_but_has_what_it_waits_for_tells_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pymtp.engine.thread, "LONGEST", 10 * PATIENCE)
    table = Table(n_seq_max=3)
    first_left = threading.Event()
    requests = [
        table.bed.submit(PROMPT, 40),
        table.bed.submit(PROMPT, 40, seed=1, caller=Late(first_left)),
        table.bed.submit(PROMPT, 200, seed=2),
    ]
    here = threading.Semaphore(0)
    table.bed.context.before = lambda what, seqs: here.acquire(timeout=PATIENCE) and here.release()
    threads = []
    for n, request in enumerate(requests):  # the first runs the engine, the others wait in this order
        threads.append(table.thread(request))
        table.until(lambda: table.turns._running.locked() and len(table.turns._waiting) == n)  # noqa: B023
    here.release()
    threads[0].join(PATIENCE)
    first_left.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert [request.reason for request in requests] == ["length"] * 3
    table.bed.check()


def test_threads_that_come_and_go_leave_nobody_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymtp.engine.thread, "LONGEST", 10 * PATIENCE)
    for n_seq_max in (1, 3):
        for _ in range(10):
            table = Table(n_seq_max=n_seq_max)
            requests = [table.bed.submit(PROMPT, n, seed=n) for n in (40, 40, 40, 200, 200)]
            threads = [table.thread(request) for request in requests]
            for thread in threads:
                thread.join(PATIENCE)
            assert [request.reason for request in requests] == ["length"] * 5
            table.bed.check()


def test_a_thread_that_never_comes_though_it_said_so_stops_nobody() -> None:
    table = Table()
    table.turns._next[0] = None  # a signal handler raised twice, say
    request = table.bed.submit(PROMPT, 30)
    table.thread(request).join(PATIENCE)
    assert request.reason == "length"
    assert not table.turns._next


def test_wherever_a_handler_raises_the_thread_beside_it_comes_to_its_end() -> None:
    through, cancelled = False, 0
    for n in range(1000):
        table = Table(n_seq_max=2)
        mine, other, later = (table.bed.submit(PROMPT, length, seed=length) for length in (40, 30, 4))
        table.bed.context.before = lambda what, seqs: time.sleep(0.0003)  # so that both want to run it
        threads = [table.thread(other)]
        with suppress(KeyboardInterrupt), Interrupted(n, "/pymtp/turns.py", "/pymtp/exclusive.py"):
            table.turns.wait(table.owner, mine.caller, [mine], lambda: mine.ended)  # noqa: B023
            through = True
        threads.append(table.thread(later))
        for thread in threads:
            thread.join(PATIENCE)
        assert (other.reason, later.reason) == ("length", "length")
        assert mine.reason in ("cancelled", "length")  # which the step that went on may have brought it to
        cancelled += mine.reason == "cancelled"
        if through:
            assert cancelled
            return
    raise AssertionError("no end of lines")
