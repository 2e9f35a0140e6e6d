"""What a child made by fork does about threads of its parent: it does not have them, and waits for none."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Left(Protocol):
    """What a thread of the parent may have been in."""

    def leave_behind(self) -> None:
        """In the child, once: what another thread holds is never given back."""


_living: WeakSet[Left] = WeakSet()


def tell_of_forks(owner: Left) -> None:
    """Has its `leave_behind` called in children, for as long as it lives."""
    _living.add(owner)


def _tell_all() -> None:
    for owner in list(_living):
        owner.leave_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
