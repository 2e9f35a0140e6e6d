"""Grammar rules for free text in which no tag occurs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from pymtp.chat.tags import SPACES, Tag, tag_regex
from pymtp.grammar.characters import Ranges, inverse, range_grammar
from pymtp.grammar.rules import Rules

NOT_IN_TEXT: Ranges = [(0x00, 0x00), (0xD800, 0xDFFF)]  # characters that no output contains

_Text = tuple[int, int, int | None]  # the rest of a text: a state, and the least and most characters that follow


class TagFreeText:
    """The grammar rules for text without some tags: one rule for each state of the automaton that finds the tags.

    A tag with a name counts as complete where its name would begin, so the text cannot contain the part before the
    name. The beginning of the text counts as the beginning of a line.
    """

    def __init__(
        self, tags: Mapping[Tag, str | None], rules: Rules, hint: str, *, may_end: bool = True, closing: str = ""
    ) -> None:
        """Prepare the rules.

        tags: for each tag that ends the text, the rule for the output after the tag; None for a tag that the text must
            not contain.
        hint: the beginning of the names of the rules.
        may_end: whether the text may end without a tag.
        closing: the text that follows where the text ends without a tag. No tag may be complete within it, either.
        """
        self._tags = tuple(dict.fromkeys(tag.before_name for tag in tags))
        self._follows = {tag.before_name: rule for tag, rule in tags.items() if rule is not None}
        self._rules, self._hint, self._may_end, self._closing = rules, hint, may_end, closing
        self._names: dict[_Text, str] = {}
        others = inverse(NOT_IN_TEXT + _ranges(_characters(self._tags)))
        self._others = rules.rule(range_grammar(others), "other")

    def rule(self, minimum: int = 0, maximum: int | None = None) -> str:
        """Return the name of the rule for text of `minimum` to `maximum` characters. Adds the rules that are missing.

        maximum: None for no limit.
        """
        ends = frozenset(self._follows)
        automaton = tag_automaton(self._tags, ends)
        final = closable_states(self._tags, ends, self._closing) if self._may_end else frozenset()
        todo: list[_Text] = []

        def name(text: _Text) -> str:
            if text not in self._names:
                self._names[text] = self._rules.fresh_name(self._hint)
                todo.append(text)
            return self._names[text]

        first = name((0, minimum, maximum))
        while todo:
            state, least, most = text = todo.pop()
            fewer = max(least - 1, 0), None if most is None else most - 1
            alternatives = ['""'] if state in final and not least else []
            for step in automaton[state] if most != 0 else []:
                if step.tag is None and fewer[1] == 0 and step.to not in final:
                    continue  # the text would have to end there
                some = step.written or self._others
                then = name((step.to, *fewer)) if step.tag is None else self._follows[step.tag]
                alternatives.append(f"{some} {then}")
            self._rules.bodies[self._names[text]] = " | ".join(alternatives)
        return first

    def contains_tag(self, text: str) -> bool:
        """Return whether a text and its closing contain one of the tags."""
        return _any_tag(self._tags).search(f"\n{text}{self._closing}") is not None


class Transition(NamedTuple):
    """A transition from a state to the next.

    characters: the characters that take this transition; "" for all characters that occur in no tag.
    written: GBNF for one of these characters; "" for those that occur in no tag.
    to: the next state.
    tag: the tag that the characters complete, which then ends the text; None if they complete no tag.
    """

    characters: str
    written: str
    to: int
    tag: str | None


# For each tag that may have begun: the part of its pattern that is missing, and the pattern if it may end the text.
_State = frozenset[tuple[str, str | None]]


@lru_cache(maxsize=64)
def tag_automaton(tags: tuple[str, ...], ends: frozenset[str]) -> list[list[Transition]]:
    """Return the transitions from each state of the automaton that accepts text without some tags.

    State 0 is the beginning of the text. Tags that end alike share their states, so there are few of them.

    tags: patterns without names.
    ends: those that may end the text.
    """
    whole = [(tag, tag if tag in ends else None) for tag in tags]

    def next_state(state: _State, character: str) -> _State:
        return frozenset(
            (rest, end) for missing, end in [*state, *whole] for rest in _missing_after(missing, character)
        )

    nothing = _State()
    states = {next_state(nothing, "\n"): 0}
    states.setdefault(nothing, len(states))
    todo, automaton = [*states], []
    for state in todo:
        steps: dict[tuple[int, str | None], str] = {}
        for character in _characters(tags):
            after = next_state(state, character)
            complete = [end for missing, end in after if not missing]
            if complete and not any(complete):
                continue
            if not complete and after not in states:
                states[after] = len(states)
                todo.append(after)
            step = (0, next(filter(None, complete))) if complete else (states[after], None)
            steps[step] = steps.get(step, "") + character
        written = [
            Transition(characters, range_grammar(_ranges(characters)), *step) for step, characters in steps.items()
        ]
        automaton.append([*written, Transition("", "", states[nothing], None)])
    return automaton


@lru_cache(maxsize=64)
def closable_states(tags: tuple[str, ...], ends: frozenset[str], closing: str) -> frozenset[int]:
    """Return the states of `tag_automaton(tags, ends)` after which a closing text completes no tag."""
    automaton, known = tag_automaton(tags, ends), frozenset(_characters(tags))

    def can_close(state: int) -> bool:
        for character in closing:
            *steps, others = automaton[state]
            step = next((step for step in steps if character in step.characters), others)
            if step.tag is not None or (step is others and character in known):
                return False
            state = step.to
        return True

    return frozenset(filter(can_close, range(len(automaton))))


@lru_cache(maxsize=64)
def _any_tag(tags: tuple[str, ...]) -> re.Pattern[str]:
    """Return a regular expression for any of the tags."""
    return re.compile("|".join(map(tag_regex, tags)) or "(?!)")


def _characters(tags: tuple[str, ...]) -> list[str]:
    """Return all characters that occur in some tags."""
    return sorted({*"".join(tags), *SPACES} if any(" " in tag for tag in tags) else {*"".join(tags)})


def _ranges(characters: Iterable[str]) -> Ranges:
    return [(ord(c), ord(c)) for c in characters]


def _missing_after(pattern: str, character: str) -> Iterator[str]:
    """Yield what is missing from a tag after its next character; nothing if the character is not the next one."""
    if pattern[0] == " ":
        if character in SPACES:
            yield pattern
        pattern = pattern[1:]
    if pattern[0] == character:
        yield pattern[1:]
