"""One call at a time: what Context and LLM do about threads, signal handlers and close()."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, NoReturn, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from pymtp.errors import ClosedError, InvalidRequestError

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound="Exclusive")


class Exclusive:
    """An object over native state that one call at a time may use.

    Calls from several threads take turns. A call within a call of the same thread raises InvalidRequestError: signal
    handlers and log handlers run in the middle of native calls, and may use cancel() and close() only.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._busy = False
        self._closed = False
        self._lost = False  # this process was forked while another thread's call ran: it never ends here
        tell_of_forks(self)

    def close(self) -> None:
        """Refuses new calls, waits for the call that runs in another thread, and frees what is native. `cancel()`
        before it makes the wait short. Within a call of the same thread, close() cancels that call, which frees
        everything at its end. Harmless when called twice."""
        self._closed = True
        with self._lock:
            if self._busy:
                self.cancel()
            elif not self._lost:
                self._free()

    def cancel(self) -> None:
        """Asks the call that runs to end soon."""
        raise NotImplementedError

    def _free(self) -> None:
        """Frees what is native. No call runs, and none begins. May be called twice."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def refuse(self) -> NoReturn:
        """Raises what a call is refused by: ClosedError, or InvalidRequestError in a handler."""
        name = type(self).__name__
        if self._lost:
            raise ClosedError(f"this process was forked while a thread was in a call of the {name}: make a new one")
        if self._closed:
            raise ClosedError(f"the {name} is closed")
        raise InvalidRequestError(
            f"this thread is in a call of the {name}: a signal or log handler may cancel() or close() it, no more"
        )

    def leave_behind(self) -> None:
        """Of forks.Left: is closed where a call of another thread runs."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock, self._busy, self._closed, self._lost = threading.RLock(), False, True, True

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


def alone(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Makes a method of an Exclusive wait for its turn. It raises ClosedError once close() was called, and
    InvalidRequestError for numbers that C has no place for."""

    @wraps(method)
    def call(self: Self, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        # nothing but a lock's own `with` is safe from a KeyboardInterrupt between acquire() and what releases it
        with self._lock:
            if self._closed or self._busy:
                self.refuse()
            self._busy = True
            try:
                return method(self, *arguments, **keywords)
            except OverflowError as error:  # from cffi, for a number that C has no place for
                raise InvalidRequestError(f"a number is out of range: {error}") from error
            finally:
                self._busy = False
                if self._closed:
                    self._free()

    return call


def refuse_copies(owner: object) -> NoReturn:
    """For __reduce__, which copy and pickle use: a C handle belongs to one Python object."""
    raise TypeError(f"a {type(owner).__name__} holds native state: it cannot be copied or pickled")


class Left(Protocol):
    """What a thread of the parent may have been in."""

    def leave_behind(self) -> None:
        """In the child, once: what another thread holds is never given back."""


def in_children(call: Callable[[], None]) -> Callable[[], None]:
    """A decorator: the function is called in each child, before the child goes on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
    return call


_living: WeakSet[Left] = WeakSet()


def tell_of_forks(owner: Left) -> None:
    """Has its `leave_behind` called in children, for as long as it lives."""
    _living.add(owner)


@in_children
def _tell_all() -> None:
    for owner in list(_living):
        owner.leave_behind()
