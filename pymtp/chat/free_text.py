"""Texts that hold no mark, as rules of a grammar."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from pymtp.chat.tags import SPACE, Mark, Marks, Thread
from pymtp.grammar.regex import Ranges, inverse, range_grammar
from pymtp.grammar.rules import Rules

NEVER: Ranges = [(0x00, 0x00), (0xD800, 0xDFFF)]  # what no text of tokens has

_Counted = tuple[int, int, int | None]  # a state, and the least and the most characters from there


class FreeText:
    """The rules of texts without some marks: of a text from each state of their automaton on."""

    def __init__(
        self, marks: Iterable[Mark], rules: Rules, hint: str, follows: Mapping[Mark, str] | None = None
    ) -> None:
        """follows: marks that may stand at the end of a text, and the rule of what comes behind each."""
        self._follows = {_until_name(mark): rule for mark, rule in (follows or {}).items()}
        ways = dict.fromkeys([*self._follows, *map(_until_name, marks)])
        self.automaton: Automaton = automaton(tuple(ways), frozenset(self._follows))
        self._rules, self._hint = rules, hint
        self._names: dict[int, str] = {}
        self._counted: dict[_Counted, str] = {}
        others = inverse([*NEVER, *((ord(c), ord(c)) for c in self.automaton.characters)])
        self._others = rules.rule(range_grammar(others), "other")

    def _characters(self, way: Way) -> str:
        return range_grammar([(ord(c), ord(c)) for c in way.characters]) if way.characters else self._others

    def rule(self, state: int, *, may_end: bool = True) -> str:
        """The name of the rule of texts that go on from a state. may_end: whether one may end without a mark."""
        todo = [state] if state not in self._names else []
        self._names.setdefault(state, self._rules.fresh_name(self._hint))
        while todo:
            at = todo.pop()
            ways = ['""'] if may_end else []
            for way in self.automaton.ways(at):
                if way.mark is None and way.to not in self._names:
                    self._names[way.to] = self._rules.fresh_name(self._hint)
                    todo.append(way.to)
                then = self._names[way.to] if way.mark is None else self._follows[way.mark]
                ways.append(f"{self._characters(way)} {then}")
            self._rules.says[self._names[at]] = " | ".join(ways)
        return self._names[state]

    def counted(self, state: int, least: int, most: int | None) -> str:
        """The name of the rule of texts of so many characters, None for any number."""
        first = (state, least, most)
        todo = [first] if first not in self._counted else []
        self._counted.setdefault(first, self._rules.fresh_name(self._hint))
        while todo:
            at = state, least, most = todo.pop()
            ways = [] if least else ['""']
            fewer = (max(least - 1, 0), None if most is None else most - 1)
            for way in self.automaton.ways(state) if most != 0 else []:
                if fewer == (0, None):
                    ways.append(f"{self._characters(way)} {self.rule(way.to)}")
                    continue
                rest = (way.to, *fewer)
                if rest not in self._counted:
                    self._counted[rest] = self._rules.fresh_name(self._hint)
                    todo.append(rest)
                ways.append(f"{self._characters(way)} {self._counted[rest]}")
            self._rules.says[self._counted[at]] = " | ".join(ways)
        return self._counted[first]


def _until_name(mark: Mark) -> str:
    return mark.way.partition("NAME")[0]


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
