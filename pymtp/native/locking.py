"""Serialized calls on native state: threads take turns, handlers are refused, forked children get new locks."""

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
    """An object over native state that runs one call at a time.

    Calls from several threads take turns. A call within a call of the same thread raises InvalidRequestError: signal
    handlers and log handlers run in the middle of native calls, and may use cancel() and close() only.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._caller = 0  # id of the thread that is in a call; 0 if none is
        self._closed = False
        self._lost = False  # the process was forked during a call of another thread, which never ends in the child
        tell_of_forks(self)

    def close(self) -> None:
        """Refuse new calls, wait for the running call, and free the native state.

        Call `cancel()` first to wait less. Within a call of the same thread, close() cancels that call, which frees
        everything at its end. A second close() does nothing.
        """
        self._closed = True
        with self._lock:
            if self._caller:
                self.cancel()
            elif not self._lost:
                self._free()

    def cancel(self) -> None:
        """Ask the running call to end soon."""
        raise NotImplementedError

    def _free(self) -> None:
        """Free the native state, after close() and while no call runs. May be called twice."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Return whether close() was called."""
        return self._closed

    def _raise_refusal(self) -> NoReturn:
        """Raise ClosedError for a closed object, InvalidRequestError within a call of the same thread."""
        name = type(self).__name__
        if self._lost:
            raise ClosedError(f"this process was forked while a thread was in a call of the {name}: make a new one")
        if self._closed:
            raise ClosedError(f"the {name} is closed")
        raise InvalidRequestError(
            f"this thread is in a call of the {name}: a signal or log handler may only cancel() or close() it"
        )

    @property
    def in_call_of_this_thread(self) -> bool:
        """Return whether this thread is in a call of the object: then a signal or log handler runs."""
        return self._caller == threading.get_ident()

    def _after_fork_in_child(self) -> None:
        """Close the object in a forked child if another thread was in a call at the fork, see ForkAware."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self.lose()

    def lose(self) -> None:
        """Close the object in a forked child, without freeing it: a thread that used it does not exist there."""
        self._lock, self._caller, self._closed, self._lost = threading.RLock(), 0, True, True

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


def alone(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Decorate a method of an Exclusive: each call of the method waits until no other call runs.

    The method raises ClosedError after close(), and InvalidRequestError for numbers that overflow their C type.
    """

    @wraps(method)
    def call(self: Self, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        # a KeyboardInterrupt between acquire() and a `try` would leave the lock taken; the lock's own `with` is safe
        with self._lock:
            if self._closed or self._caller:
                self._raise_refusal()
            self._caller = threading.get_ident()
            try:
                return method(self, *arguments, **keywords)
            except OverflowError as error:  # cffi raises it for a number that overflows its C type
                raise InvalidRequestError(f"a number is out of range: {error}") from error
            finally:
                self._caller = 0
                if self._closed:
                    self._free()

    return call


def refuse_copies(owner: object) -> NoReturn:
    """Raise TypeError from __reduce__, which copy and pickle call: a C handle belongs to one Python object."""
    raise TypeError(f"a {type(owner).__name__} holds native state: it cannot be copied or pickled")


_exiting = False


def exiting() -> bool:
    """Return whether the interpreter exits: then native calls end, and other threads begin no more of them."""
    return _exiting


def begin_exit() -> None:
    """Record that the interpreter exits."""
    global _exiting
    _exiting = True


class ForkAware(Protocol):
    """An object with a lock that another thread may hold at a fork."""

    def _after_fork_in_child(self) -> None:
        """Replace locks in the child: a thread that does not exist there would never release them."""


def in_children(call: Callable[[], None]) -> Callable[[], None]:
    """Decorate a function that must be called in each forked child, before fork() returns there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
    return call


_living: WeakSet[ForkAware] = WeakSet()


def tell_of_forks(owner: ForkAware) -> None:
    """Call the owner's `_after_fork_in_child` in children of forks, for as long as the owner lives."""
    _living.add(owner)


@in_children
def _tell_all() -> None:
    for owner in list(_living):
        owner._after_fork_in_child()
