"""Grammar rules for free text in which no tag occurs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from pymtp.chat.tags import SPACE, PartialMatch, Tag, TagSet
from pymtp.grammar.regex import Ranges, inverse, range_grammar
from pymtp.grammar.rules import Rules

NOT_IN_TEXT: Ranges = [(0x00, 0x00), (0xD800, 0xDFFF)]  # characters that no output contains

_CountedState = tuple[int, int, int | None]  # a state, and the least and most characters that may still follow


class TagFreeText:
    """The grammar rules for text without some tags: one rule for each state of the automaton that finds the tags."""

    def __init__(self, tags: Iterable[Tag], rules: Rules, hint: str, follows: Mapping[Tag, str] | None = None) -> None:
        """Prepare the rules.

        tags: the tags that the text must not contain.
        hint: the beginning of the names of the rules.
        follows: tags that may end the text, and for each the rule for the output after the tag.
        """
        self._follows = {_before_name(tag): rule for tag, rule in (follows or {}).items()}
        patterns = dict.fromkeys([*self._follows, *map(_before_name, tags)])
        self.automaton: TagAutomaton = tag_automaton(tuple(patterns), frozenset(self._follows))
        self._rules, self._hint = rules, hint
        self._names: dict[int, str] = {}
        self._counted_names: dict[_CountedState, str] = {}
        others = inverse([*NOT_IN_TEXT, *((ord(c), ord(c)) for c in self.automaton.characters)])
        self._others = rules.rule(range_grammar(others), "other")

    def _characters(self, step: Transition) -> str:
        return range_grammar([(ord(c), ord(c)) for c in step.characters]) if step.characters else self._others

    def rule(self, state: int, *, may_end: bool = True) -> str:
        """Return the name of the rule for the text after a state. Adds the rules that are missing.

        may_end: whether the text may end without a tag.
        """
        todo = [state] if state not in self._names else []
        self._names.setdefault(state, self._rules.fresh_name(self._hint))
        while todo:
            at = todo.pop()
            alternatives = ['""'] if may_end else []
            for step in self.automaton.transitions(at):
                if step.tag is None and step.to not in self._names:
                    self._names[step.to] = self._rules.fresh_name(self._hint)
                    todo.append(step.to)
                then = self._names[step.to] if step.tag is None else self._follows[step.tag]
                alternatives.append(f"{self._characters(step)} {then}")
            self._rules.bodies[self._names[at]] = " | ".join(alternatives)
        return self._names[state]

    def counted(self, state: int, minimum: int, maximum: int | None) -> str:
        """Return the name of the rule for text of `minimum` to `maximum` characters after a state. Adds missing rules.

        maximum: None for no limit.
        """
        first = (state, minimum, maximum)
        todo = [first] if first not in self._counted_names else []
        self._counted_names.setdefault(first, self._rules.fresh_name(self._hint))
        while todo:
            at = state, minimum, maximum = todo.pop()
            alternatives = [] if minimum else ['""']
            fewer = (max(minimum - 1, 0), None if maximum is None else maximum - 1)
            for step in self.automaton.transitions(state) if maximum != 0 else []:
                if fewer == (0, None):
                    alternatives.append(f"{self._characters(step)} {self.rule(step.to)}")
                    continue
                rest = (step.to, *fewer)
                if rest not in self._counted_names:
                    self._counted_names[rest] = self._rules.fresh_name(self._hint)
                    todo.append(rest)
                alternatives.append(f"{self._characters(step)} {self._counted_names[rest]}")
            self._rules.bodies[self._counted_names[at]] = " | ".join(alternatives)
        return self._counted_names[first]


def _before_name(tag: Tag) -> str:
    return tag.pattern.partition("NAME")[0]


_SPACES = " \t\r\n"


class Transition(NamedTuple):
    """A transition from a state to the next.

    characters: the characters that take this transition; "" for all characters that occur in no tag.
    to: the next state.
    tag: the tag that the characters complete, which then ends the text; None if they complete no tag.
    """

    characters: str
    to: int
    tag: str | None


class TagAutomaton:
    """The minimal automaton that accepts text without some tags.

    A tag with a name counts as complete where its name would begin, so the text cannot contain the part before the
    name. State 0 is the state after a character that occurs in no tag.

    characters: all characters that occur in tags.
    """

    def __init__(self, patterns: tuple[str, ...], ends: frozenset[str]) -> None:
        """Build the automaton.

        patterns: the patterns of the tags.
        ends: the patterns of those tags that may end a text.
        """
        tag_set = TagSet([Tag(pattern) for pattern in patterns])
        spaces = _SPACES if any(item.character is SPACE for tag in tag_set.tags for item in tag.items) else ""
        literal = {c for tag in tag_set.tags for c, _ in tag.items if isinstance(c, str)}
        self.characters = "".join(sorted({*literal, *spaces}))
        states: dict[frozenset[PartialMatch], int] = {frozenset(): 0}
        steps: list[list[tuple[int, str | None] | None]] = []
        for state in (todo := [frozenset[PartialMatch]()]):
            row: list[tuple[int, str | None] | None] = []
            for character in self.characters:
                matches = frozenset(match for match, _ in tag_set.step(state, character))
                complete = [tag for tag, n in matches if n == len(tag_set.tags[tag].items)]
                if complete:
                    pattern = tag_set.tags[min(complete)].pattern
                    row.append((0, pattern) if pattern in ends else None)
                    continue
                if matches not in states:
                    states[matches] = len(states)
                    todo.append(matches)
                row.append((states[matches], None))
            steps.append(row)
        self._begins = {after: states[frozenset(tag_set.begin(after))] for after in ("", "\n")}
        self._steps = steps
        self._merge_equal_states()

    def _merge_equal_states(self) -> None:
        """Merge states after which the same texts are accepted (Moore's algorithm)."""
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
        """Return the state at the beginning of a text that comes after a newline, or after ""."""
        return self._begins[after]

    def step(self, state: int, character: str) -> int | None:
        """Return the state after a character; None where a tag would be complete."""
        at = self.characters.find(character)
        step = (0, None) if at < 0 else self._steps[state][at]
        return None if step is None or step[1] is not None else step[0]

    def transitions(self, state: int) -> list[Transition]:
        """Return the transitions from a state, except those that complete a tag that cannot end the text."""
        characters: dict[tuple[int, str | None], str] = {}
        for character, step in zip(self.characters, self._steps[state], strict=True):
            if step is not None:
                characters[step] = characters.get(step, "") + character
        return [*(Transition(some, *step) for step, some in characters.items()), Transition("", 0, None)]


@lru_cache(maxsize=64)
def tag_automaton(patterns: tuple[str, ...], ends: frozenset[str] = frozenset()) -> TagAutomaton:
    """Return the automaton for some tags.

    patterns, ends: see `TagAutomaton`; each pattern is cut off before the name in its tag.
    """
    return TagAutomaton(patterns, ends)
