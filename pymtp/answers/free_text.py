"""Texts that hold no mark, as rules of a grammar: an automaton that is in the state of a reader's watch."""

from __future__ import annotations

from collections.abc import Mapping

from pymtp.answers.marks import NAME, SPACE, Item, Mark, Marks, Thread
from pymtp.pattern import Ranges, inverse, range_grammar
from pymtp.rules import Rules

NEVER: Ranges = [(0x00, 0x00), (0xD800, 0xDFFF)]  # what no text of tokens has
_SPACES = " \t\r\n"
State = frozenset[Thread]
Way = tuple[str, State, str | None]


class FreeText:
    """The rules of texts without some marks. What a mark names is left out: texts hold none that begins like it.

    A mark may be followed by more, and is then the end of the text: see `rule`.
    """

    def __init__(self, marks: Marks, rules: Rules, hint: str, follows: Mapping[Mark, str] | None = None) -> None:
        """follows: the rule of what comes behind a mark, for those that may stand at the end of a text."""
        self._follows = {_until_name(mark).way: rule for mark, rule in (follows or {}).items()}
        ways = dict.fromkeys(_until_name(mark).way for mark in marks.each)
        self._marks = Marks([Mark(way) for way in ways])
        self._rules, self._hint = rules, hint
        self._names: dict[State, str] = {}
        self._counted: dict[tuple[State, int, int | None], str] = {}
        self._ways: dict[State, list[Way]] = {}
        self.characters = sorted(set().union(*(_characters(item) for mark in self._marks.each for item in mark.items)))
        self._others = rules.rule(
            range_grammar(inverse([*NEVER, *((ord(c), ord(c)) for c in self.characters)])), "other"
        )

    def begin(self, after: str) -> State:
        """The state of a text that begins behind some characters."""
        return frozenset(self._marks.begin(after))

    def step(self, state: State, character: str) -> tuple[State, str | None] | None:
        """The state after a character, and the rule of what follows the mark that it completes. None where a mark must
        not stand. Characters that belong to no mark lead to the empty state."""
        threads = {thread for thread, _ in self._marks.step(state, character)}
        complete = {mark for mark, n in threads if n == len(self._marks.each[mark].items)}
        if not complete:
            return frozenset(threads), None
        follows = self._follows.get(self._marks.each[min(complete)].way)
        return None if follows is None else (frozenset(), follows)

    def ways(self, state: State) -> list[Way]:
        """The characters, as GBNF, that lead from a state to each other, and the rule of what follows."""
        if state not in self._ways:
            found: dict[tuple[State, str | None], list[str]] = {}
            for character in self.characters:
                if (after := self.step(state, character)) is not None:
                    found.setdefault(after, []).append(character)
            ways = [(range_grammar([(ord(c), ord(c)) for c in each]), *after) for after, each in found.items()]
            self._ways[state] = [*ways, (self._others, frozenset(), None)]
        return self._ways[state]

    def rule(self, state: State, *, may_end: bool = True) -> str:
        """The name of the rule of texts that go on from a state. may_end: whether one may end without a mark."""
        todo = [state] if state not in self._names else []
        self._names.setdefault(state, self._rules.fresh_name(self._hint))
        while todo:
            at = todo.pop()
            ways = ['""'] if may_end else []
            for characters, to, follows in self.ways(at):
                if follows is None and to not in self._names:
                    self._names[to] = self._rules.fresh_name(self._hint)
                    todo.append(to)
                ways.append(f"{characters} {follows or self._names[to]}")
            self._rules.says[self._names[at]] = " | ".join(ways)
        return self._names[state]

    def counted(self, state: State, least: int, most: int | None) -> str:
        """The name of the rule of texts of so many characters, None for any number."""
        first = (state, least, most)
        todo = [first] if first not in self._counted else []
        self._counted.setdefault(first, self._rules.fresh_name(self._hint))
        while todo:
            at, least, most = todo.pop()
            ways = [] if least else ['""']
            fewer = (max(least - 1, 0), None if most is None else most - 1)
            for characters, to, _ in self.ways(at) if most != 0 else []:
                if fewer == (0, None):
                    ways.append(f"{characters} {self.rule(to)}")
                    continue
                rest = (to, *fewer)
                if rest not in self._counted:
                    self._counted[rest] = self._rules.fresh_name(self._hint)
                    todo.append(rest)
                ways.append(f"{characters} {self._counted[rest]}")
            self._rules.says[self._counted[at, least, most]] = " | ".join(ways)
        return self._counted[first]


def _until_name(mark: Mark) -> Mark:
    return Mark(mark.way.partition("NAME")[0])


def _characters(item: Item) -> set[str]:
    if isinstance(item.character, str):
        return {item.character}
    assert item.character is not NAME
    return set(_SPACES) if item.character is SPACE else set()
