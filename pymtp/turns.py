"""Which thread runs the engine: whoever waits for tokens does, for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from pymtp.engine.engine import Engine
from pymtp.engine.request import Caller, Request
from pymtp.exclusive import Exclusive, alone

T = TypeVar("T")
LONGEST = 0.05  # seconds until a thread that waits looks for itself whether another still runs the engine


class Turns:
    """One thread at a time runs the engine, until it has what it waits for; then another that waits goes on.

    Nothing here is left wrong for good where a signal handler raises in between: locks are taken by their own `with`
    alone, and who waits for another thread looks again by itself.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._running = threading.Lock()  # taken within the owner's lock: says to others whether somebody runs it
        self._thread = 0  # that does
        self._next: dict[int, None] = {}  # threads that are about to, and may wait for the owner's lock
        self._waiting: list[Caller] = []

    def refuse_within(self, owner: Exclusive) -> None:
        """Raises InvalidRequestError in a signal or log handler of the thread that runs the engine, ClosedError once
        the owner was closed."""
        if owner.closed or (self._running.locked() and self._thread == threading.get_ident()):
            owner.refuse()

    def wait(self, owner: Exclusive, caller: Caller, requests: Sequence[Request], ready: Callable[[], object]) -> None:
        """Returns when `ready`: runs the engine until then, or waits while another thread does.

        owner: whose calls these are. requests: those that end where this is left by an exception. Raises ClosedError
        when the owner was closed meanwhile, and what a signal handler raised.
        """
        try:
            while not ready():
                if self._running.locked():
                    self.refuse_within(owner)
                    self._wait_for_news(caller, lambda: ready() or not self._running.locked())
                    continue
                self._next[threading.get_ident()] = None
                _run(owner, self, requests, ready)
                if not ready() and not self._wait_for_news(caller, lambda: ready() or self._nobody):
                    self._next.clear()  # it was somebody else's turn, who never came
            self._hand_over()  # whoever ran the engine last may have told this thread, which leaves
        except BaseException:
            self._next.pop(threading.get_ident(), None)
            self.give_up(requests)
            raise

    def give_up(self, requests: Sequence[Request]) -> None:
        """Ends those that have not ended: nobody waits for them any more."""
        for request in requests:
            if request.submitted:
                self.engine.cancel(request)
        self._hand_over()

    def between(self, owner: Exclusive, call: Callable[[], T]) -> T:
        """What a call returns that is made while no thread runs the engine. Raises as `wait`, and what it raises."""
        self.refuse_within(owner)
        try:
            self._next[threading.get_ident()] = None
            return _between(owner, self, call)
        finally:
            self._next.pop(threading.get_ident(), None)
            self._hand_over()

    @property
    def wanted(self) -> bool:
        """Whether a thread waits to run the engine, or to make a call between two of its steps."""
        return bool(self._next or self._waiting)

    @property
    def _nobody(self) -> bool:
        """Whether no thread runs the engine or is about to."""
        return not self._next and not self._running.locked()

    def _wait_for_news(self, caller: Caller, unless: Callable[[], object]) -> bool:
        """Whether there was something new, or another thread runs the engine."""
        self._waiting.append(caller)
        try:
            return caller.wait(unless, LONGEST) or self._running.locked()
        finally:
            self._waiting.remove(caller)

    def _hand_over(self) -> None:
        if not self._nobody:
            return  # who hands over in turn
        for caller in list(self._waiting):
            if caller.waiting:
                caller.tell()
                return

    def alone(self, call: Callable[[], T]) -> T:
        """See `between`. Within the owner's lock."""
        with self._running:
            self._thread = threading.get_ident()
            self._next.pop(self._thread, None)
            try:
                return call()
            finally:
                self._thread = 0

    def run(self, owner: Exclusive, requests: Sequence[Request], ready: Callable[[], object]) -> None:
        """Runs the engine until `ready`, or until another thread wants to. Within the owner's lock."""
        with self._running:
            self._thread = threading.get_ident()
            self._next.pop(self._thread, None)
            try:
                self.engine.settle()
                while not ready() and (not self._next or owner.closed):
                    self.engine.step()
            except BaseException:
                for request in requests:
                    self.engine.cancel(request)
                self.engine.settle()
                raise
            finally:
                self._thread = 0


@alone
def _between(owner: Exclusive, turns: Turns, call: Callable[[], T]) -> T:
    return turns.alone(call)


@alone
def _run(owner: Exclusive, turns: Turns, requests: Sequence[Request], ready: Callable[[], object]) -> None:
    turns.run(owner, requests, ready)
