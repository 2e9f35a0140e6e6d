"""What a child made by fork does about threads of its parent: it does not have them, and waits for none."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet


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
