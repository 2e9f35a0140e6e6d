"""The thread that runs the engine of an LLM: callers submit requests and wait."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from pymtp.context.context import Context
from pymtp.engine.engine import Engine
from pymtp.engine.request import Request, Waiter
from pymtp.engine.warm_up import WarmUp
from pymtp.errors import ClosedError, InvalidRequestError, NativeError
from pymtp.native.process import FORK_SECONDS, exiting, in_processor, tell_of_forks, wait_before_forks

T = TypeVar("T")
POLL_SECONDS = 0.1  # a closing thread checks at this interval whether the interpreter exits
RETRY_SECONDS = 0.1  # a warm-up that made way for a call continues after this time
FREE_SECONDS = 1.0  # longest wait of a destructor for the engine's thread


class _Wait(threading.local):
    """Tells whether this thread waits for the engine. Code that runs then is a handler of a signal.

    lock: held by the thread while it waits. A `with` of a lock releases it even after a KeyboardInterrupt at any line.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    @property
    def begun(self) -> bool:
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]


class Closable(Protocol):
    """An object to close, such as a model or a projector."""

    def close(self) -> None: ...


class EngineThread:
    """Runs an engine on a thread of its own, and closes its context.

    The thread starts with the first request or call, sleeps while there is nothing to do, and runs no code of a signal
    handler. It keeps no reference to the LLM.
    """

    def __init__(self, engine: Engine, context: Context, warm_up: WarmUp, owned: Sequence[Closable]) -> None:
        """Create the thread of an engine, without starting it.

        context: the context of the engine, which the thread closes at its end.
        warm_up: the warm-up of the context.
        owned: what to close after the context, in this order, such as a model that nobody else uses.
        """
        self.engine, self._context, self._warm_up, self._owned = engine, context, warm_up, owned
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._calls: deque[tuple[Future[Any], Callable[[], object]]] = deque()
        self._wait = _Wait()
        self._starting = threading.RLock()  # reentrant: a destructor may wake the thread while this lock is held
        self._thread: threading.Thread | None = None
        self._busy = False  # whether the thread is in a step, a call or the warm-up
        self._warms_up = False  # whether the thread warms up while it is idle
        self._closing = self._closed = False  # close() was called; the context is closed
        self._made_at_exit = exiting.is_set()
        self._lost = False  # the process was forked while the thread was busy: it does not exist in the child
        tell_of_forks(self)
        wait_before_forks(self)

    # ── Calls of other threads ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def closed(self) -> bool:
        """Return whether close() was called."""
        return self._closing

    @property
    def freed(self) -> bool:
        """Return whether the context is closed."""
        return self._closed

    def check_usable(self) -> None:
        """Raise ClosedError after close(), and InvalidRequestError in a handler that interrupts a call of the LLM."""
        if self._lost:
            raise ClosedError("this process was forked while a thread was in a call of the LLM: make a new one")
        if self._closing:
            raise ClosedError("the LLM is closed")
        self._refuse_handlers()

    def submit(self, requests: Sequence[Request]) -> None:
        """Let the engine run requests. Raises the errors of `check_usable`."""
        self.check_usable()
        self._submit(requests)

    def _submit(self, requests: Sequence[Request]) -> None:
        self._warm_up.done = True  # from now on, the rounds of requests are timed
        for request in requests:
            self.engine.submit(request)
        self.wake()

    def run(self, requests: Sequence[Request], waiter: Waiter) -> None:
        """Submit requests, and wait until all have ended.

        waiter: the waiter of the requests.

        Raises the errors of `check_usable`. An error that interrupts the wait, such as KeyboardInterrupt, cancels the
        requests.
        """
        self.check_usable()
        self._wait_until(waiter, lambda: not waiter.n_unfinished, requests, lambda: self._submit(requests))

    def wait(self, waiter: Waiter, requests: Sequence[Request], ready: Callable[[], object]) -> None:
        """Wait until `ready()`. An error that interrupts the wait cancels the requests."""
        self._refuse_handlers()
        self._wait_until(waiter, ready, requests)

    def _wait_until(
        self,
        waiter: Waiter,
        ready: Callable[[], object],
        requests: Sequence[Request] = (),
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        """Call `begin`, and wait until `ready()`. An error that interrupts this cancels the requests."""
        try:
            with self._wait.lock:
                begin()
                waiter.wait(lambda: ready() or self._closed or self._lost or self._stopped_by_exit)
                if not ready():
                    raise ClosedError("the LLM is closed")
        except BaseException:
            self.cancel(requests)
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Make a call on the engine's thread, between two steps, and return its result.

        Raises the errors of `check_usable` and of the call.
        """
        self.check_usable()
        future: Future[T] = Future()
        waiter = Waiter()
        future.add_done_callback(lambda _: waiter.notify())
        self._wait_until(waiter, future.done, begin=partial(self._add_call, future, function))
        try:
            return future.result()
        finally:
            del future  # an error refers to this frame

    def _add_call(self, future: Future[Any], function: Callable[[], object]) -> None:
        self._calls.append((future, function))
        self.wake()

    def cancel(self, requests: Sequence[Request]) -> None:
        """Cancel the requests that were submitted and have not ended. Safe in destructors and handlers."""
        for request in requests:
            if request.arrival_time:
                self.engine.cancel(request)
        self.wake()

    def cancel_all(self) -> None:
        """Cancel all requests, and the native call that runs. Safe in handlers of signals."""
        self._context.cancel()
        if self._thread is not None:
            self.wake()

    def wake(self) -> None:
        """Let the thread look for work. Starts it if it does not run."""
        if self._closed or self._lost or sys.is_finalizing():
            return
        if self._thread is None and not self._start():
            self._work()  # the interpreter exits, and starts no thread
        elif self._wakes.empty():  # otherwise the thread will look for work anyway
            self._wakes.put(None)

    def warm_up_now(self) -> None:
        """Run the warm-up on the thread, and wait for it. After an error or Ctrl-C, close everything.

        Raises the errors of the context.
        """
        if self._warm_up.done:
            return
        try:
            self.call(lambda: self._warm_up.run(self._context))
        except BaseException:  # such as Ctrl-C: a kept traceback must not keep the contexts in memory
            self._context.cancel()
            self.close()
            raise

    def warm_up_when_idle(self) -> None:
        """Let the thread run the warm-up while there is no work, unless it was done."""
        if not self._warm_up.done:
            self._warms_up = True
            self.wake()

    def close(self) -> None:
        """Refuse new requests, wait for those that run, end the others, and free the context.

        Streams and waiting requests end with ClosedError. In a signal or log handler that interrupts a call, that call
        is cancelled instead of waited for, and its end frees the context. A second close() only waits.
        """
        if in_processor.running:
            in_processor.refuse()
        self._closing = True
        in_call = self._wait.begun or self._is_this_thread() or self._context.in_call_of_this_thread
        if in_call:
            self._context.cancel()
        with self._starting:
            if self._thread is None:
                self._finish()
                return
        self.wake()
        if not in_call:
            self._join(None)

    def free(self) -> None:
        """Cancel everything and free the context, for a destructor: wait for the thread for a short time only."""
        self._closing = True  # a thread that was about to start ends
        if self._thread is None or sys.is_finalizing() or self._closed:
            return
        self._context.cancel()
        self.wake()
        if not self._is_this_thread():
            self._join(FREE_SECONDS)

    def _join(self, seconds: float | None) -> None:
        thread = self._thread
        while thread is not None and thread.is_alive() and not self._stopped_by_exit and not self._lost:
            thread.join(POLL_SECONDS if seconds is None else seconds)
            if seconds is not None:
                return

    @property
    def _stopped_by_exit(self) -> bool:
        """Return whether this is the main thread, which exits, so that the engine's thread runs no more."""
        main = threading.current_thread() is threading.main_thread()
        return main and exiting.is_set() and not self._made_at_exit

    def _is_this_thread(self) -> bool:
        return self._thread is threading.current_thread()

    def _refuse_handlers(self) -> None:
        if in_processor.running:
            in_processor.refuse()
        if self._wait.begun or self._is_this_thread():
            raise InvalidRequestError(
                "this thread is in a call of the LLM: a signal or log handler may only cancel() or close() it"
            )

    def _start(self) -> bool:
        """Start the thread. Return False if the interpreter exits and starts none."""
        try:
            threading.Thread(target=self._run, name="pymtp engine", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _claim(self) -> bool:
        """Make this thread the engine's. Return False if there is one: an interrupted start may have made two."""
        with self._starting:
            if self._thread is not None or self._closing:
                return False
            self._thread = threading.current_thread()
            return True

    def _before_fork(self) -> None:
        """Wait until the thread is idle, if no request or call is left: the last one may return before its step does.

        An AsyncLLM, which a child cannot use, is not waited for.
        """
        end = time.monotonic() + FORK_SECONDS
        while self._busy and self.engine.idle and not self._calls and not self._warms_up and time.monotonic() < end:
            if self._thread is None or self._is_this_thread():
                return
            time.sleep(0.001)

    def _after_fork_in_child(self) -> None:
        """Start a new thread in a forked child when it is needed, or give the engine up if the thread was busy."""
        self._starting = threading.RLock()
        self._wakes = SimpleQueue()
        if self._busy or self._calls or not self.engine.idle:
            self._closing = self._lost = True
            self._context.lose()
        self._thread = None

    # ── The thread ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        if not self._claim():
            return
        while not self._closed:
            try:
                self._wait_for_work()
                self._work()
            except BaseException as error:  # such as MemoryError: not an error of one request, so all must end
                self._fail(error)
            self._busy = False

    def _fail(self, error: BaseException) -> None:
        """End all requests with an error of the engine, and tell the user of it."""
        self.wake()
        with suppress(BaseException):
            self.engine.fail_all(NativeError(f"the engine failed: {error!r}"))
        with suppress(BaseException):
            threading.excepthook(
                threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
            )

    def _work(self) -> None:
        """Run calls and steps until there is nothing to do. After close(), end the requests and free the context."""
        engine = self.engine
        self._busy, worked = True, False
        while True:
            if self._calls:
                engine.hand_over()
            while self._calls:
                engine.process_queues()
                started = time.perf_counter()
                _run(*self._calls.popleft())
                engine.count_call(time.perf_counter() - started)
            if self._closing and not engine.closing:
                engine.process_queues()
                engine.close(ClosedError("the LLM is closed"))
            if not worked and engine.idle:
                break
            worked = engine.step()
        if self._closing:
            self._finish()

    def _finish(self) -> None:
        """Free the context, and end the requests and calls that came too late."""
        self.engine.close(ClosedError("the LLM is closed"))
        self.engine.prefix_cache.clear()
        self._context.close()
        for one in self._owned:
            one.close()
        self._closed = True
        while self._calls:
            self._calls.popleft()[0].set_exception(ClosedError("the LLM is closed"))

    def _wait_for_work(self) -> None:
        """Wait until `wake` is called, and run the warm-up meanwhile."""
        while self._warms_up and not self._warm_up.done and self._wakes.empty():
            self._busy = True
            try:
                self._warm_up.run(self._context, lambda: not self._wakes.empty())
            except BaseException:  # if the context is broken, the first request will get the error
                self._warms_up = False
            self._busy = False
            if not self._warm_up.done:
                with suppress(Empty):
                    return self._wakes.get(timeout=RETRY_SECONDS)
        self._wakes.get()


def _run(future: Future[Any], function: Callable[[], object]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
    finally:
        del future, function  # an error refers to this frame
