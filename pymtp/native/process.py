"""What an exit of the interpreter and a fork mean for native calls: they begin no more, and locks are replaced."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol
from weakref import WeakSet

from pymtp.errors import InvalidRequestError

FORK_SECONDS = 1.0  # longest wait of a fork for a thread
exiting = threading.Event()  # set when the interpreter exits: native calls end, and other threads begin no more of them


class ForkAware(Protocol):
    """An object with a lock that another thread may hold at a fork."""

    def _after_fork_in_child(self) -> None:
        """Replace locks in the child: a thread that does not exist there would never release them."""


def in_children(call: Callable[[], None]) -> Callable[[], None]:
    """Decorate a function that must be called in each forked child, before fork() returns there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
    return call


class Busy(Protocol):
    """An object whose thread should be at rest when the process forks."""

    def _before_fork(self) -> None:
        """Wait for the thread, for a limited time."""


_living: WeakSet[ForkAware] = WeakSet()
_busy: WeakSet[Busy] = WeakSet()


def tell_of_forks(owner: ForkAware) -> None:
    """Call the owner's `_after_fork_in_child` in children of forks, for as long as the owner lives."""
    _living.add(owner)


def wait_before_forks(owner: Busy) -> None:
    """Call the owner's `_before_fork` before each fork in Python, for as long as the owner lives."""
    _busy.add(owner)


def _wait_for_all() -> None:
    for owner in list(_busy):
        owner._before_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_all)


@in_children
def _tell_all() -> None:
    for owner in list(_living):
        owner._after_fork_in_child()


def refuse_copies(owner: object) -> NoReturn:
    """Raise TypeError from __reduce__, which copy and pickle call: a C handle belongs to one Python object."""
    raise TypeError(f"{type(owner).__name__} holds native state: it cannot be copied or pickled")


class _InProcessor(threading.local):
    """Counts in `running` the logits processors that this thread runs. Use it as a context manager around each call.

    A native call waits for the processor, so that a call of the same context in the processor would wait for ever.
    """

    running = 0  # more than 1 if a processor calls a sampler that has one, too

    def __enter__(self) -> None:
        self.running += 1

    def __exit__(self, *_: object) -> None:
        self.running -= 1

    def refuse(self) -> NoReturn:
        """Raise the error of a call in a logits processor."""
        raise InvalidRequestError("a logits_processor must not call the LLM or its context, which wait for it")


in_processor = _InProcessor()
