"""The order in which compared variants are measured, so that no position favours one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def balanced_order(items: Sequence[T], turn: int) -> tuple[T, ...]:
    """Return the items in an order that depends on `turn`.

    Let n be the number of items. Over n successive turns, each item is once at each of the n positions. If n is even,
    each item is also once directly after each other item: Williams, "Experimental designs balanced for the estimation
    of residual effects of treatments" (1949).
    """
    zigzag = [(i + 1) // 2 * (-1 if i % 2 == 0 else 1) for i in range(len(items))]  # 0 1 -1 2 …
    return tuple(items[(turn + step) % len(items)] for step in zigzag)
