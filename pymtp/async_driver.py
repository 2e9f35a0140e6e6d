"""What an AsyncLLM has beside its LLM: a thread that runs the engine, and what wakes coroutines from it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from pymtp.engine.request import Caller, Request
from pymtp.errors import ClosedError, NativeError
from pymtp.llm import LLM

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

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._work: SimpleQueue[bool] = SimpleQueue()  # whether to go on
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # a text may be freed at any line, here too, and cancels its requests
        self._live: set[Request] = set()
        self._last: list[Request] = []  # that were live when it was stopped
        self._stopped = False
        self._times_launches = llm.first_launches.claim()
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
            self._llm.turns.wait(self._llm, Caller(), [], lambda: all(request.ended for request in requests))
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
                self._llm.engine.cancel(request)
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
        llm = self._llm
        while self._goes_on():
            try:
                llm.turns.wait(llm, Caller(), [], lambda: llm.engine.idle or self._ended)
            except ClosedError:
                return  # the requests have ended, too
            except Exception as error:  # of no request: no memory, perhaps. Whoever waits must hear of it
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )
                llm.fail(NativeError(f"the engine failed: {error!r}"))

    def _goes_on(self) -> bool:
        """Wait for work: tell whether to go on. Time launches meanwhile, before the first request."""
        llm, first = self._llm, self._llm.first_launches

        def wanted() -> bool:
            return not self._work.empty() or llm.turns.wanted or llm.closed

        while self._times_launches and not first.done:
            try:
                llm.turns.between(llm, lambda: first.time(llm.context, wanted))
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
