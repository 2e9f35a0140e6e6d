"""The order in which what is compared runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turn(items: Sequence[T], turn: int) -> tuple[T, ...]:
    """The items in their order for this turn. Over as many turns as there are items, each comes once at every place,
    and once right after every other if their number is even: Williams, "Experimental designs balanced for the
    estimation of residual effects of treatments" (1949)."""
    zigzag = [(place + 1) // 2 * (-1 if place % 2 == 0 else 1) for place in range(len(items))]  # 0 1 -1 2 …
    return tuple(items[(turn + step) % len(items)] for step in zigzag)
