"""Limits on the steps, characters and seconds that a chat template may take to render a prompt.

A template is a program by the author of the model file, who is not trusted. It may loop without end, or double a string
forty times. Loops, calls, filters, operators and literals are counted here. For an operation that multiplies a string,
the length of the result is estimated before the operation runs (render_costs.py).
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import Any

BASE_STEPS = 2**18  # steps of a rendering; two more are allowed for each character of its inputs
BASE_CHARACTERS = 2**24  # characters that a rendering may make, including intermediate strings
CHARACTERS_PER_INPUT = 32  # allowed in addition: templates copy a message about ten times
MAX_SECONDS = 10.0  # processor time; stops operations that are slower than their counted steps
MAX_BITS = 4096  # bits of an integer
CHARACTERS_PER_STEP = 2**10  # reading this many characters counts as a step
CLOCK_INTERVAL = 32  # steps between two checks of the clock
CALL_STEPS = 4  # steps that are counted for a call

# Levels of lists within lists. Python crashes when it hashes tuples that are nested a hundred thousand levels deep.
MAX_DEPTH = 400

ITEM_WEIGHT = 8  # characters that are counted for a list item, and for a value that is no string or list
_CONTAINERS = (list, tuple, dict, set, frozenset)  # checked before the abstract classes, which are slower
_ABSTRACT_CONTAINERS = (Mapping, KeysView, ValuesView, ItemsView)


class RenderLimitError(Exception):
    """The error for a template that exceeds its limits."""


class RenderBudget:
    """The steps, characters and seconds that are left for one rendering."""

    def __init__(self, inputs: object) -> None:
        """Set the limits of a rendering.

        inputs: the variables of the template. The limits grow with their size.
        """
        # For the id of each weighed object: the object, its weight and its depth. A reference to the object is kept, so
        # that no other object gets its id.
        self._weights: dict[int, tuple[object, int, int]] = {}
        self._depth_below = 0  # the greatest depth of the items of a list that were weighed so far
        self._next_clock_check = 0
        self._steps, self._characters = 2**63, 2**63  # no limits while the inputs are weighed
        self._deadline = time.thread_time() + MAX_SECONDS
        size = self.weigh(inputs)
        self._limit = BASE_CHARACTERS + CHARACTERS_PER_INPUT * size
        self._steps, self._characters = BASE_STEPS + 2 * size, self._limit
        self._next_clock_check = self._steps

    def step(self, n: int = 1) -> None:
        """Count n steps. Raises RenderLimitError for too many steps, and after too many seconds."""
        self._steps -= n
        if self._steps < self._next_clock_check:
            self._next_clock_check = self._steps - CLOCK_INTERVAL
            if self._steps < 0:
                raise RenderLimitError("the template takes too many steps: it may have an endless loop or recursion")
            if time.thread_time() > self._deadline:
                raise RenderLimitError(f"the template takes more than {MAX_SECONDS:g} seconds")

    def count_output(self, characters: int) -> None:
        """Count characters that are about to be made. Raises RenderLimitError beyond the limit."""
        if characters > self._characters:
            raise RenderLimitError(f"the template writes more than {self._limit} characters")
        self._characters -= max(0, characters)

    def weigh(self, value: object) -> int:
        """Estimate the length of a value as text. A list that occurs twice in the value counts twice.

        Raises RenderLimitError for a value whose text would be too long, for lists that are nested too deep, and for an
        integer with too many digits.
        """
        if isinstance(value, (str, bytes)):
            return len(value)
        if value is None or value is True or value is False:
            return ITEM_WEIGHT
        if isinstance(value, int):
            return bit_count(value) // 3 + 1
        if not isinstance(value, _CONTAINERS) and not isinstance(value, _ABSTRACT_CONTAINERS):
            return ITEM_WEIGHT * len(value) if isinstance(value, range) else ITEM_WEIGHT
        source = self._weights.get(id(value))
        if source is not None:
            self._depth_below = max(self._depth_below, source[2])
            return source[1]
        self.step(len(value))
        parts: Iterable[object] = value
        if isinstance(value, Mapping):
            parts = (part for pair in value.items() for part in pair)
        depth_beside, self._depth_below = self._depth_below, 0
        weight = ITEM_WEIGHT * len(value) + sum(map(self.weigh, parts))
        depth = self._depth_below + 1
        if depth > MAX_DEPTH:
            raise RenderLimitError(f"the template nests lists more than {MAX_DEPTH} levels deep")
        self._depth_below = max(depth_beside, depth)
        if weight > self._characters:
            raise RenderLimitError(
                f"the template makes a list whose elements have more than {self._limit} characters together"
            )
        self._weights[id(value)] = (value, weight, depth)
        return weight

    def count_result(self, value: Any, *source: object) -> Any:
        """Count the result of an operation, and return it. An iterator is replaced by one that counts its items.

        source: the value that the operation was applied to. If the result is that same string, it costs nothing.
        """
        if value is None or value is True or value is False:
            return value
        if isinstance(value, (str, bytes)):
            if not source or value is not source[0]:
                self.count_output(len(value))
        elif isinstance(value, Iterator):
            return self._count_items(value)
        else:
            self.weigh(value)
        return value

    def count_input(self, *values: object) -> None:
        """Count the steps of reading the strings that an operation gets, and weigh its other inputs."""
        for value in values:
            if isinstance(value, (str, bytes)):
                if len(value) >= CHARACTERS_PER_STEP:
                    self.step(len(value) // CHARACTERS_PER_STEP)
            elif value is not None and not isinstance(value, bool):
                self.weigh(value)

    def _count_items(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            self.step()
            yield value


_current: ContextVar[RenderBudget] = ContextVar("budget of the template that runs")


def current_budget() -> RenderBudget:
    """Return the budget of the rendering that runs in this thread or task.

    Raises LookupError while a template is compiled. The error keeps the compiler from computing constant expressions,
    which it would do without a budget.
    """
    return _current.get()


def render_within(budget: RenderBudget, parts: Iterable[str]) -> str:
    """Join the parts that a template yields. Raises RenderLimitError beyond the budget, and the template's errors."""
    token = _current.set(budget)
    try:
        counted = []
        for part in parts:
            budget.count_output(len(part))
            counted.append(part)
        return "".join(counted)
    finally:
        _current.reset(token)


def bit_count(number: int) -> int:
    """Count the bits of an integer. Raises RenderLimitError for more than MAX_BITS."""
    return check_bits(int(number).bit_length())


def check_bits(n: int) -> int:
    """Return a number of bits. Raises RenderLimitError for more than MAX_BITS."""
    if n > MAX_BITS:
        raise RenderLimitError(f"the template computes a number of more than {MAX_BITS} bits")
    return n
