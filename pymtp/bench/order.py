"""The order of the arms of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def balanced_order(items: Sequence[T], turn: int) -> tuple[T, ...]:
    """Return the items in the order of a turn.

    Over as many turns as there are items, each item comes once at every place, and, if their number is even, once right
    after every other: Williams, "Experimental designs balanced for the estimation of residual effects of treatments"
    (1949).
    """
    zigzag = [(i + 1) // 2 * (-1 if i % 2 == 0 else 1) for i in range(len(items))]  # 0 1 -1 2 …
    return tuple(items[(turn + step) % len(items)] for step in zigzag)
