"""Texts that hold no mark, as rules of a grammar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pymtp.answers.automaton import Automaton, Way, automaton
from pymtp.answers.marks import Mark
from pymtp.pattern import Ranges, inverse, range_grammar
from pymtp.rules import Rules

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
