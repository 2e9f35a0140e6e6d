"""Limits on the steps, characters and seconds that a chat template may take to render a prompt.

A template is a program by whoever wrote the model file. It may loop without end, or double a text forty times. Loops,
calls, filters, operators and literals are counted here; an operation that multiplies a text is estimated before it runs
(render_costs.py).
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import Any

BASE_STEPS = 2**18  # a rendering may take as many, and two more for each character of its inputs
BASE_CHARACTERS = 2**24  # a rendering may make as many, intermediate texts included
CHARACTERS_PER_INPUT = 32  # more for each character of its inputs: templates copy a message about ten times
MAX_SECONDS = 10.0  # processor time: the last resort, for operations that are slow for their size
MAX_BITS = 4096  # in an integer
CHARACTERS_PER_STEP = 2**10  # reading as many counts as a step
CLOCK_INTERVAL = 32  # steps between two checks of the clock
CALL_STEPS = 4  # steps that a call counts for

# Lists within lists. Python crashes when it hashes tuples that are nested a hundred thousand deep.
MAX_DEPTH = 400

ITEM_WEIGHT = 8  # characters that an item of a list counts for, and a value that is neither text nor list
_CONTAINERS = (list, tuple, dict, set, frozenset)  # checked first: isinstance with the abstract classes is slower
_ABSTRACT_CONTAINERS = (Mapping, KeysView, ValuesView, ItemsView)


class RenderLimitError(Exception):
    """An operation of the template beyond the limits."""


class RenderBudget:
    """The steps, characters and seconds that are left for one rendering."""

    def __init__(self, inputs: object) -> None:
        """Begin a rendering. inputs: the variables of the template, which it may read and copy."""
        # Weights and depths by the object's id, each with the object, which keeps the id from being used again.
        self._weights: dict[int, tuple[object, int, int]] = {}
        self._depth_below = 0  # the greatest depth among the values that were weighed last, side by side
        self._next_clock_check = 0
        self._steps, self._characters = 2**63, 2**63  # weighing the inputs costs nothing
        self._deadline = time.thread_time() + MAX_SECONDS
        size = self.weigh(inputs)
        self._limit = BASE_CHARACTERS + CHARACTERS_PER_INPUT * size
        self._steps, self._characters = BASE_STEPS + 2 * size, self._limit
        self._next_clock_check = self._steps

    def step(self, n: int = 1) -> None:
        """Count n steps. Raises RenderLimitError beyond the limit, and once too many seconds have passed."""
        self._steps -= n
        if self._steps < self._next_clock_check:
            self._next_clock_check = self._steps - CLOCK_INTERVAL
            if self._steps < 0:
                raise RenderLimitError("it takes too many steps: a loop or a call may be without end")
            if time.thread_time() > self._deadline:
                raise RenderLimitError(f"it takes more than {MAX_SECONDS:g} seconds")

    def count_output(self, characters: int) -> None:
        """Count characters that are about to be made. Raises RenderLimitError beyond the limit."""
        if characters > self._characters:
            raise RenderLimitError(f"it writes more than {self._limit} characters")
        self._characters -= max(0, characters)

    def weigh(self, value: object) -> int:
        """Estimate the characters of a value's text. A list in two places counts twice, as its text does.

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
            raise RenderLimitError(f"it nests lists more than {MAX_DEPTH} deep")
        self._depth_below = max(depth_beside, depth)
        if weight > self._characters:
            raise RenderLimitError(f"it makes a list of more than {self._limit} characters")
        self._weights[id(value)] = (value, weight, depth)
        return weight

    def count_result(self, value: Any, *source: object) -> Any:
        """Count the result of an operation, and return it; an iterator comes back as one that counts its items.

        source: the value that the operation began with. The same text again costs nothing.
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
        """Count the steps to read the texts that an operation is given, and weigh its other inputs."""
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

    Raises LookupError while a template is compiled, so that the compiler computes none of its constants.
    """
    return _current.get()


def render_within(budget: RenderBudget, parts: Iterable[str]) -> str:
    """Join the parts of a text as the template makes them. Raises RenderLimitError, or any error of the template."""
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
    n = int(number).bit_length()
    if n > MAX_BITS:
        raise RenderLimitError(f"it computes a number of more than {MAX_BITS} bits")
    return n
