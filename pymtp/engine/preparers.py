"""The threads that prepare new requests: clients take turns, and long calls leave threads for short ones."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from pymtp.engine.request import Caller, current_caller

T = TypeVar("T")
# A call for a request with a larger body is a long one, as it may take more than 50 ms. So is one with images.
LONG_BYTES = 2**17
Call = tuple["Future[Any]", Callable[[], Any]]


class Preparers(Executor):
    """An executor whose calls belong to the caller that is set where they are submitted.

    Clients take turns, each with one call at a time. Long calls run on at most half of the threads.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(n_threads, name)
        self._max_long = max(1, n_threads // 2)
        self._lock = threading.Lock()
        self._short: OrderedDict[str, deque[Call]] = OrderedDict()  # calls that wait, by clients, next client first
        self._long: OrderedDict[str, deque[Call]] = OrderedDict()
        self._n_long = 0  # long calls that run

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Let a thread make the call of the current caller. Cancelling the future drops a call that has not begun."""
        future: Future[T] = Future()
        caller = current_caller.get() or Caller()
        with self._lock:
            queues = self._long if caller.n_bytes > LONG_BYTES or caller.has_images else self._short
            queues.setdefault(caller.client, deque()).append((future, partial(fn, *args, **kwargs)))
        self._threads.submit(self._work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Extend Executor's method."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def _work(self) -> None:
        """Make the calls whose turn it is, until none may begin: a thread comes here for each submitted call."""
        while (following := self._next()) is not None:
            (future, call), is_long = following
            try:
                _run(future, call)
            finally:
                del future, call, following  # they refer to the prompt
                with self._lock:
                    self._n_long -= is_long

    def _next(self) -> tuple[Call, bool] | None:
        """Return the next call that may begin, and whether it is a long one; None if there is none."""
        with self._lock:
            may_begin = len(self._long) > 0 and self._n_long < self._max_long
            is_long = may_begin and (not self._n_long or not self._short)
            queues = self._long if is_long else self._short
            if not queues:
                return None
            client, calls = queues.popitem(last=False)
            call = calls.popleft()
            if calls:
                queues[client] = calls
            self._n_long += is_long
            return call, is_long


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
    finally:
        del future  # an error refers to this frame
