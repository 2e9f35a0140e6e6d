"""Bounds on what a chat template may do while it makes a prompt: steps, characters, seconds.

A template is a program of whoever wrote the model file. It may loop without end, or double a text forty times. Loops,
calls, filters, operators and literals are counted here; what multiplies a text is estimated before it is done.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import Any

STEPS = 2**18  # of a rendering, and two more for each character that it is given
CHARACTERS = 2**24  # that a rendering may make, the parts of its text included
SHARE = 32  # characters more for each one that it is given: templates copy a message about ten times
SECONDS = 10.0  # of the processor: the last resort, for operations that are slow for their size
BITS = 4096  # of a whole number
READ = 2**10  # characters that are read in a step
LOOK = 32  # steps between two looks at the clock
CALL = 4  # steps that a call counts for

DEPTH = 400  # of lists in lists: Python ends the process where it hashes tuples nested a hundred thousand times

PART = 8  # characters that a part of a list counts for, and a value that is neither text nor list
_LISTS = (list, tuple, dict, set, frozenset)  # before those of collections.abc, which take longer to look up
_OTHERS = (Mapping, KeysView, ValuesView, ItemsView)


class OverrunError(Exception):
    """The template did more than it may."""


class Budget:
    """What is left of the bounds of one rendering."""

    def __init__(self, given: object) -> None:
        """given: all that the template is given, which it may read and copy."""
        # weights and depths, each with its object: an id is good while that lives
        self._weights: dict[int, tuple[object, int, int]] = {}
        self._below = 0  # the depth of what was weighed last beside each other
        self._next_look = 0
        self._steps, self._characters = 2**63, 2**63  # to look at what is given costs nothing
        self._deadline = time.thread_time() + SECONDS
        size = self.weigh(given)
        self._limit = CHARACTERS + SHARE * size
        self._steps, self._characters = STEPS + 2 * size, self._limit
        self._next_look = self._steps

    def step(self, n: int = 1) -> None:
        """Count n steps. Raises OverrunError where too many were made, or too many seconds have passed."""
        self._steps -= n
        if self._steps < self._next_look:
            self._next_look = self._steps - LOOK
            if self._steps < 0:
                raise OverrunError("it takes too many steps: a loop or a call may be without end")
            if time.thread_time() > self._deadline:
                raise OverrunError(f"it takes more than {SECONDS:g} seconds")

    def write(self, characters: int) -> None:
        """Count characters that are about to be made. Raises OverrunError where they are too many."""
        if characters > self._characters:
            raise OverrunError(f"it writes more than {self._limit} characters")
        self._characters -= max(0, characters)

    def weigh(self, value: object) -> int:
        """Estimate the characters of a value's text. A list in two places counts twice, as its text does. Raises
        OverrunError for a value whose text would be too long, for lists that are nested too deep, and for a whole
        number of too many digits."""
        if isinstance(value, (str, bytes)):
            return len(value)
        if value is None or value is True or value is False:
            return PART
        if isinstance(value, int):
            return bits(value) // 3 + 1
        if not isinstance(value, _LISTS) and not isinstance(value, _OTHERS):
            return PART * len(value) if isinstance(value, range) else PART
        known = self._weights.get(id(value))
        if known is not None:
            self._below = max(self._below, known[2])
            return known[1]
        self.step(len(value))
        parts: Iterable[object] = value
        if isinstance(value, Mapping):
            parts = (part for pair in value.items() for part in pair)
        beside, self._below = self._below, 0
        weight = PART * len(value) + sum(map(self.weigh, parts))
        depth = self._below + 1
        if depth > DEPTH:
            raise OverrunError(f"it nests lists more than {DEPTH} deep")
        self._below = max(beside, depth)
        if weight > self._characters:
            raise OverrunError(f"it makes a list of more than {self._limit} characters")
        self._weights[id(value)] = (value, weight, depth)
        return weight

    def checked(self, value: Any, *known: object) -> Any:
        """A value that an operation made. known: what it was made from: the same text
        again costs nothing."""
        if value is None or value is True or value is False:
            return value
        if isinstance(value, (str, bytes)):
            if not known or value is not known[0]:
                self.write(len(value))
        elif isinstance(value, Iterator):
            return self._counted(value)
        else:
            self.weigh(value)
        return value

    def read(self, *values: object) -> None:
        """Count a step for each READ characters of texts that an operation goes through, and weigh other values."""
        for value in values:
            if isinstance(value, (str, bytes)):
                if len(value) >= READ:
                    self.step(len(value) // READ)
            elif value is not None and not isinstance(value, bool):
                self.weigh(value)

    def _counted(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            self.step()
            yield value


_running: ContextVar[Budget] = ContextVar("budget of the template that runs")


def running() -> Budget:
    """The budget of the rendering that runs here. Raises LookupError while a template is compiled, so that nothing of
    it is computed then."""
    return _running.get()


def within(budget: Budget, parts: Iterable[str]) -> str:
    """Join the parts of a text as a template makes them. Raises OverrunError, and what the template raises."""
    token = _running.set(budget)
    try:
        found = []
        for part in parts:
            budget.write(len(part))
            found.append(part)
        return "".join(found)
    finally:
        _running.reset(token)


def bits(number: int) -> int:
    """Count the bits of a whole number. Raises OverrunError for more than BITS."""
    found = int(number).bit_length()
    if found > BITS:
        raise OverrunError(f"it computes a number of more than {BITS} bits")
    return found
