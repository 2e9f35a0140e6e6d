"""The threads that share an engine: a thread that waits for its request runs the engine for all requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from pymtp.engine.engine import Engine
from pymtp.engine.request import Request, Waiter
from pymtp.errors import PymtpError
from pymtp.native.locking import Exclusive, alone

T = TypeVar("T")
POLL_SECONDS = 0.05  # a waiting thread checks at this interval whether another thread still runs the engine


class EngineRunner:
    """Lets one of the waiting threads at a time run the engine, until its own request is done.

    Then another waiting thread runs the engine. An error that a signal handler raises at any line leaves no lasting
    damage: locks are only taken by `with lock`, and a waiting thread polls.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._running = threading.Lock()  # locked while a thread runs the engine; taken within the owner's lock
        self._thread = 0  # id of the thread that runs the engine; 0 if none does
        self._next: dict[int, None] = {}  # ids of the threads that run it next; they may wait for the owner's lock
        self._waiting: list[Waiter] = []  # waiters of threads that wait while another one runs the engine

    def refuse_reentry(self, owner: Exclusive) -> None:
        """Raise InvalidRequestError in a signal or log handler of the thread that runs the engine.

        Raises ClosedError if the owner was closed.
        """
        if owner.closed or (self._running.locked() and self._thread == threading.get_ident()):
            owner._raise_refusal()

    def run_until(
        self, owner: Exclusive, waiter: Waiter, requests: Sequence[Request], ready: Callable[[], object]
    ) -> None:
        """Run the engine until `ready()` is true, or wait while another thread runs it.

        owner: the LLM of the engine.
        waiter: the waiter of this thread.
        requests: the requests to cancel if this raises an error.

        Raises ClosedError if the owner is closed meanwhile, and the errors of signal handlers.
        """
        try:
            while not ready():
                if self._running.locked():
                    self.refuse_reentry(owner)
                    self._wait_for_change(waiter, lambda: ready() or not self._running.locked())
                    continue
                self._next[threading.get_ident()] = None
                _run_steps(owner, self, requests, ready)
                if not ready() and not self._wait_for_change(waiter, lambda: ready() or self._unclaimed):
                    self._next.clear()  # a thread in `_next` did not run the engine: an interrupt may have ended it
            self._wake_next()  # this thread may have been woken to run the engine, but it returns
        except BaseException:
            self._next.pop(threading.get_ident(), None)
            self.cancel(requests)
            raise

    def cancel(self, requests: Sequence[Request]) -> None:
        """Cancel the requests that have not ended."""
        for request in requests:
            if request.arrival_time:  # else the request was never submitted
                self.engine.cancel(request)
        self._wake_next()

    def call_between_steps(self, owner: Exclusive, call: Callable[[], T]) -> T:
        """Make a call while no thread runs the engine, and return its result.

        Raises the errors of `run_until` and of the call.
        """
        self.refuse_reentry(owner)
        try:
            self._next[threading.get_ident()] = None
            return _call_exclusively(owner, self, call)
        finally:
            self._next.pop(threading.get_ident(), None)
            self._wake_next()

    def fail_all(self, owner: Exclusive, error: PymtpError) -> None:
        """End all requests with an error."""
        with owner._lock:
            self.engine.fail_all(error)

    @property
    def wanted(self) -> bool:
        """Return whether a thread waits to run the engine, or to make a call between two of its steps."""
        return bool(self._next or self._waiting)

    @property
    def _unclaimed(self) -> bool:
        """Return whether no thread runs the engine, and none will run it next."""
        return not self._next and not self._running.locked()

    def _wait_for_change(self, waiter: Waiter, ready: Callable[[], object]) -> bool:
        """Wait until notified, unless `ready()`. Return False after a timeout if no thread runs the engine then."""
        self._waiting.append(waiter)
        try:
            return waiter.wait(ready, POLL_SECONDS) or self._running.locked()
        finally:
            self._waiting.remove(waiter)

    def _wake_next(self) -> None:
        if not self._unclaimed:
            return  # the thread that runs the engine will wake the next one
        for waiter in list(self._waiting):
            if waiter.waiting:
                waiter.notify()
                return

    def call_exclusively(self, call: Callable[[], T]) -> T:
        """Make a call for `call_between_steps`. The caller holds the owner's lock."""
        with self._running:
            self._thread = threading.get_ident()
            self._next.pop(self._thread, None)
            try:
                return call()
            finally:
                self._thread = 0

    def run_steps(self, owner: Exclusive, requests: Sequence[Request], ready: Callable[[], object]) -> None:
        """Run the engine until `ready()`, or until another thread wants to. The caller holds the owner's lock."""
        with self._running:
            self._thread = threading.get_ident()
            self._next.pop(self._thread, None)
            try:
                self.engine.process_queues()
                while not ready() and (not self._next or owner.closed):
                    self.engine.step()
            except BaseException:
                for request in requests:
                    self.engine.cancel(request)
                self.engine.process_queues()
                raise
            finally:
                self._thread = 0


@alone
def _call_exclusively(owner: Exclusive, runner: EngineRunner, call: Callable[[], T]) -> T:
    return runner.call_exclusively(call)


@alone
def _run_steps(
    owner: Exclusive, runner: EngineRunner, requests: Sequence[Request], ready: Callable[[], object]
) -> None:
    runner.run_steps(owner, requests, ready)
