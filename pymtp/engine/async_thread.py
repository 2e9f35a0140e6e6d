"""The thread that runs the engine of an AsyncLLM, and the event by which it wakes coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from pymtp.context.context import Context
from pymtp.engine.request import Request, Waiter
from pymtp.engine.thread import EngineRunner
from pymtp.engine.warm_up import WarmUp
from pymtp.errors import ClosedError, NativeError
from pymtp.native.locking import Exclusive

RETRY_SECONDS = 0.1  # a warm-up that was stopped for a call that needs the context continues after this time


class AsyncWakeup:
    """An event that the engine's thread sets and a coroutine waits for.

    waiter: the waiter of the requests that set the event.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_set = False  # from the time when the loop is asked to set the event until `wait` returns
        self.waiter = Waiter(self._set)

    def _set(self) -> None:
        if self._is_set:
            return
        self._is_set = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop is closed: no coroutine waits
            return

    async def wait(self) -> None:
        """Wait until the event is set, and reset it."""
        await self._event.wait()
        self._event.clear()
        # reset before the coroutine looks at its requests: it would miss a change between the look and the reset
        self._is_set = False


class EngineThread:
    """A thread that runs an LLM's engine for coroutines, while there is work and no other thread runs the engine."""

    def __init__(self, owner: Exclusive, runner: EngineRunner, warm_up: WarmUp, context: Callable[[], Context]) -> None:
        """Start the thread if the context needs a warm-up; otherwise `add_requests` starts it.

        owner: the LLM, whose lock the thread takes.
        runner: the runner of the LLM's engine.
        warm_up: the warm-up of the LLM's context.
        context: returns the LLM's context, or raises ClosedError.
        """
        self._owner, self._runner, self._warm_up, self._context = owner, runner, warm_up, context
        self._work: SimpleQueue[bool] = SimpleQueue()  # True: look for work; False: end the thread
        self._thread: threading.Thread | None = None
        # reentrant, because a destructor that cancels requests may run at any line, even while this lock is held
        self._lock = threading.RLock()
        self._unfinished: set[Request] = set()
        self._stopping: list[Request] = []  # unfinished requests at the time of stop()
        self._stopped = False
        self._warms_up = warm_up.claim()
        if self._warms_up:
            self._start()

    def _after_fork_in_child(self) -> None:
        """Replace the lock in a forked child, where the thread does not exist and may have held it."""
        self._lock = threading.RLock()

    def add_requests(self, requests: Sequence[Request]) -> None:
        """Let the thread run these requests. After stop(), cancel them, wait for their end, and raise ClosedError."""
        with self._lock:
            if not self._stopped:
                self._unfinished.update(requests)
                self._start()
                self.wake()
                return
        self.cancel(requests)
        with suppress(ClosedError):  # a closed LLM has ended the requests already
            self._runner.run_until(self._owner, Waiter(), [], lambda: all(request.ended for request in requests))
        raise ClosedError("the AsyncLLM is closed")

    def wake(self) -> None:
        """Make the thread look for work."""
        if self._work.empty():  # otherwise the thread will look for work anyway
            self._work.put(True)

    def cancel(self, requests: Sequence[Request]) -> None:
        """Cancel the requests that have not ended."""
        with self._lock:
            self._unfinished.difference_update(requests)
        for request in requests:
            if not request.ended:
                self._runner.engine.cancel(request)
        self.wake()

    def end(self) -> None:
        """Let the thread end when its requests have ended, so that it keeps no reference to the LLM."""
        self._work.put(False)

    def stop(self) -> None:
        """Cancel all requests, and wait until the thread has ended."""
        with self._lock:
            self._stopping, thread = list(self._unfinished), self._thread
            self._stopped = True
        self.cancel(self._stopping)
        self.end()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pymtp engine", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._runner.run_until(self._owner, Waiter(), [], self._may_pause)
            except ClosedError:
                return  # closing the LLM has ended the requests
            except Exception as error:  # such as MemoryError: not an error of one request, so all must end
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )
                self._runner.fail_all(self._owner, NativeError(f"the engine failed: {error!r}"))

    def _wait_for_work(self) -> bool:
        """Wait until `wake` or `end` is called, and run the warm-up meanwhile. Return False if the thread must end."""
        warm_up = self._warm_up

        def should_stop() -> bool:
            return not self._work.empty() or self._runner.wanted or self._owner.closed

        while self._warms_up and not warm_up.done:
            try:
                self._runner.call_between_steps(self._owner, lambda: warm_up.run(self._context(), should_stop))
            except Exception:  # if the context is broken, the first request will get the error
                break
            if not warm_up.done:
                with suppress(Empty):
                    return self._work.get(timeout=RETRY_SECONDS)
        return self._work.get()

    def _may_pause(self) -> bool:
        """Return whether the thread may stop running the engine for now."""
        return self._runner.engine.idle or self._stopped_and_done

    @property
    def _stopped_and_done(self) -> bool:
        """Return whether stop() was called and its requests have ended. Requests of other callers may still run."""
        return self._stopped and all(request.ended for request in self._stopping)
