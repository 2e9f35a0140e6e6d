"""An automaton that is where a watch is: in texts that hold none of some marks, or one of them at their end."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import NamedTuple

from pymtp.answers.marks import SPACE, Mark, Marks, Thread

_SPACES = " \t\r\n"


class Way(NamedTuple):
    """From a state: the characters that lead on, "" for all that belong to no mark; where to, and the mark that they
    complete, which is then the end."""

    characters: str
    to: int
    mark: str | None


class Automaton:
    """With as few states as can be. What a mark names is left out: texts hold none that begins like it.

    characters: those that belong to marks. 0 is the state behind a character that belongs to none.
    """

    def __init__(self, marks: tuple[str, ...], ends: frozenset[str]) -> None:
        """marks: how they are written. ends: those that may stand at the end of a text."""
        watched = Marks([Mark(mark) for mark in marks])
        spaces = _SPACES if any(item.character is SPACE for mark in watched.each for item in mark.items) else ""
        literal = {c for mark in watched.each for c, _ in mark.items if isinstance(c, str)}
        self.characters = "".join(sorted({*literal, *spaces}))
        found: dict[frozenset[Thread], int] = {frozenset(): 0}
        steps: list[list[tuple[int, str | None] | None]] = []
        for state in (todo := [frozenset[Thread]()]):
            row: list[tuple[int, str | None] | None] = []
            for character in self.characters:
                threads = frozenset(thread for thread, _ in watched.step(state, character))
                complete = [mark for mark, n in threads if n == len(watched.each[mark].items)]
                if complete:
                    mark = watched.each[min(complete)].way
                    row.append((0, mark) if mark in ends else None)
                    continue
                if threads not in found:
                    found[threads] = len(found)
                    todo.append(threads)
                row.append((found[threads], None))
            steps.append(row)
        self._begins = {after: found[frozenset(watched.begin(after))] for after in ("", "\n")}
        self._steps = steps
        self._join_equal()

    def _join_equal(self) -> None:
        """States from which the same texts go on become one."""
        kinds = [0] * len(self._steps)
        while True:
            known: dict[Hashable, int] = {}
            rows = (
                (kind, *(None if step is None else (kinds[step[0]], step[1]) for step in row))
                for kind, row in zip(kinds, self._steps, strict=True)
            )
            finer = [known.setdefault(row, len(known)) for row in rows]
            if len(known) == len(set(kinds)):
                break
            kinds = finer
        first = {kind: state for state, kind in reversed([*enumerate(kinds)])}
        self._steps = [
            [None if step is None else (kinds[step[0]], step[1]) for step in self._steps[first[kind]]]
            for kind in range(len(first))
        ]
        self._begins = {after: kinds[state] for after, state in self._begins.items()}

    def begin(self, after: str) -> int:
        """The state of a text that begins behind "\\n", or behind nothing."""
        return self._begins[after]

    def step(self, state: int, character: str) -> int | None:
        """The state after a character. None where a mark would be complete."""
        at = self.characters.find(character)
        step = (0, None) if at < 0 else self._steps[state][at]
        return None if step is None or step[1] is not None else step[0]

    def ways(self, state: int) -> list[Way]:
        """All that do not lead to a mark, but for those at the end."""
        found: dict[tuple[int, str | None], str] = {}
        for character, step in zip(self.characters, self._steps[state], strict=True):
            if step is not None:
                found[step] = found.get(step, "") + character
        return [*(Way(characters, *step) for step, characters in found.items()), Way("", 0, None)]


@lru_cache(maxsize=64)
def automaton(marks: tuple[str, ...], ends: frozenset[str] = frozenset()) -> Automaton:
    """marks, ends: as written, each up to what it names."""
    return Automaton(marks, ends)
