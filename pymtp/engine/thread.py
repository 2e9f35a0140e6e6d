"""Which thread runs the engine: whoever waits for tokens does, for all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from pymtp.context.context import Context
from pymtp.engine.engine import Engine
from pymtp.engine.request import Caller, Request
from pymtp.engine.warm_up import FirstLaunches
from pymtp.errors import ClosedError, NativeError, PymtpError
from pymtp.native.locking import Exclusive, alone

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

    def fail(self, owner: Exclusive, error: PymtpError) -> None:
        """End all requests with an error."""
        with owner._lock:
            self.engine.fail(error)

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


PAUSE = 0.1  # seconds until launches are timed again, where somebody wanted the context


class News:
    """Wakes a coroutine from the thread that runs the engine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._told = False  # the loop knows that there is something new, and nobody has looked since
        self.caller = Caller(self._tell)

    def _tell(self) -> None:
        if self._told:
            return
        self._told = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop is closed: nobody waits
            return

    async def wait(self) -> None:
        """Until there was something new since the last call."""
        await self._event.wait()
        self._event.clear()
        self._told = False  # what comes from here on tells anew; what came before is seen now


class Driver:
    """The thread that runs an LLM's engine while there is something to do and nobody else does."""

    def __init__(
        self, owner: Exclusive, turns: Turns, first_launches: FirstLaunches, context: Callable[[], Context]
    ) -> None:
        """Begin to time launches where nobody has.

        owner: the LLM, whose lock the steps take. context: returns its context, or raises ClosedError.
        """
        self._owner, self._turns, self._first_launches, self._context = owner, turns, first_launches, context
        self._work: SimpleQueue[bool] = SimpleQueue()  # whether to go on
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # a text may be freed at any line, here too, and cancels its requests
        self._live: set[Request] = set()
        self._last: list[Request] = []  # that were live when it was stopped
        self._stopped = False
        self._times_launches = first_launches.claim()
        if self._times_launches:
            self._start()

    def leave_behind(self) -> None:
        """In a forked child, which does not have the thread: what it has may still be let go of."""
        self._lock = threading.RLock()

    def take(self, requests: Sequence[Request]) -> None:
        """New requests. Raises ClosedError after stop(), once they have ended."""
        with self._lock:
            if not self._stopped:
                self._live.update(requests)
                self._start()
                self.wake()
                return
        self.cancel(requests)
        with suppress(ClosedError):  # of the LLM: they have ended, too
            self._turns.wait(self._owner, Caller(), [], lambda: all(request.ended for request in requests))
        raise ClosedError("the AsyncLLM is closed")

    def wake(self) -> None:
        """There may be something to do."""
        if self._work.empty():  # else the thread looks again anyway
            self._work.put(True)

    def cancel(self, requests: Sequence[Request]) -> None:
        """Nobody waits for them any more: ends those that have not ended."""
        with self._lock:
            self._live.difference_update(requests)
        for request in requests:
            if not request.ended:
                self._turns.engine.cancel(request)
        self.wake()

    def let_go(self) -> None:
        """Nobody asks for anything any more: the thread ends, and keeps the LLM no longer."""
        self._work.put(False)

    def stop(self) -> None:
        """Ends its requests, and the thread."""
        with self._lock:
            self._last, thread = list(self._live), self._thread
            self._stopped = True
        self.cancel(self._last)
        self.let_go()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pymtp engine", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._goes_on():
            try:
                self._turns.wait(self._owner, Caller(), [], lambda: self._turns.engine.idle or self._ended)
            except ClosedError:
                return  # the requests have ended, too
            except Exception as error:  # of no request: no memory, perhaps. Whoever waits must hear of it
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )
                self._turns.fail(self._owner, NativeError(f"the engine failed: {error!r}"))

    def _goes_on(self) -> bool:
        """Wait for work: tell whether to go on. Time launches meanwhile, before the first request."""
        first = self._first_launches

        def wanted() -> bool:
            return not self._work.empty() or self._turns.wanted or self._owner.closed

        while self._times_launches and not first.done:
            try:
                self._turns.between(self._owner, lambda: first.time(self._context(), wanted))
            except Exception:  # the first request hears of it
                break
            if not first.done:
                with suppress(Empty):
                    return self._work.get(timeout=PAUSE)
        return self._work.get()

    @property
    def _ended(self) -> bool:
        """Whether it was stopped, and its requests have ended: others may run on."""
        return self._stopped and all(request.ended for request in self._last)
