"""Finite automata for strings with several conditions at once, such as a pattern and a length, as rules of a grammar.

A condition is an expression: a regular expression that also knows `both` and `without`. Its derivative by a character
is the expression for what may follow the character, so the states of the automaton are expressions (Brzozowski:
"Derivatives of Regular Expressions", 1964). Equal expressions are one object, so equal states are found by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Protocol

from pymtp.grammar.characters import Ranges, merge_ranges
from pymtp.grammar.pattern_syntax import (
    Anchor,
    Characters,
    Choice,
    Look,
    PatternNode,
    Repeat,
    Sequence,
    parse_pattern,
)
from pymtp.grammar.rules import Rules

MAX_TRANSITIONS = 4000  # an automaton of this size takes some 100 KB of GBNF, and tenths of a second
MAX_STEPS = 200_000  # pairs of a state and a class of characters that are tried for an automaton
MAX_SETS = 1000  # different sets of characters in all conditions of a text
MAX_EXPRESSIONS = 100_000
_AFTER_LAST = 0x110000
MAX_INLINE = 16  # characters of GBNF that are written where they are used, and not as a rule of their own
MAX_EXPANDED = 16  # repetitions that are written out because they look ahead


class NoTextError(ValueError):
    """Conditions that no text fulfils."""


class Expression:
    """A node of an expression, made by `Expressions` only.

    kind: "none" matches nothing, "empty" the empty string, "set" one character; "then" a sequence of two, "any" one of
        several, "both" what all match, "not" what does not match, "repeat" a repetition.
    """

    __slots__ = ("kind", "nullable", "parts")

    def __init__(self, kind: str, parts: tuple[Any, ...], nullable: bool) -> None:
        self.kind, self.parts, self.nullable = kind, parts, nullable


class Condition(Protocol):
    """A further condition on a text, which reads it character by character."""

    def start(self) -> object:
        """Return the state before the first character."""

    def step(self, state: object, code: int) -> object | None:
        """Return the state after a character; None if no text can go on like this."""

    def accepts(self, state: object) -> bool:
        """Return whether the text may end in this state."""


class Expressions:
    """The expressions over some sets of characters. Characters that are in the same sets are one class."""

    def __init__(self, sets: Iterable[Ranges]) -> None:
        distinct = [*dict.fromkeys(tuple(merge_ranges([*ranges])) for ranges in sets)]
        if len(distinct) > MAX_SETS:
            raise ValueError(f"there are more than {MAX_SETS} different sets of characters")
        edges: dict[int, int] = {0: 0, _AFTER_LAST: 0}  # for each code: the sets that begin or end there, as bits
        for i, ranges in enumerate(distinct):
            for first, last in ranges:
                edges[first] = edges.get(first, 0) ^ 1 << i
                edges[last + 1] = edges.get(last + 1, 0) ^ 1 << i
        codes = sorted(edges)
        by_sets: dict[int, Ranges] = {}
        inside = 0
        for first, after in pairwise(codes):
            inside ^= edges[first]
            by_sets.setdefault(inside, []).append((first, after - 1))
        self.classes = [*by_sets.values()]
        self._masks = dict.fromkeys(distinct, 0)
        for number, inside in enumerate(by_sets):
            for i, ranges in enumerate(distinct):
                self._masks[ranges] |= (inside >> i & 1) << number
        self._all = (1 << len(self.classes)) - 1
        self._known: dict[tuple[object, ...], Expression] = {}
        self._derivatives: dict[tuple[Expression, int], Expression] = {}
        self.none = self._make("none", (), False)
        self.empty = self._make("empty", (), True)
        self.anything = self.repeat(self._make("set", (self._all,), False), 0, None)

    def _make(self, kind: str, parts: tuple[object, ...], nullable: bool) -> Expression:
        key = (kind, *parts)
        if key not in self._known:
            if len(self._known) == MAX_EXPRESSIONS:
                raise ValueError(f"its automaton needs more than {MAX_EXPRESSIONS} expressions")
            self._known[key] = Expression(kind, parts, nullable)
        return self._known[key]

    def characters(self, ranges: Ranges) -> Expression:
        mask = self._masks[tuple(merge_ranges([*ranges]))]
        return self._make("set", (mask,), False) if mask else self.none

    def then(self, first: Expression, second: Expression) -> Expression:
        if self.none in (first, second):
            return self.none
        if first is self.empty or (first is second is self.anything):
            return second
        if second is self.empty:
            return first
        if first.kind == "then":
            head, rest = first.parts
            return self.then(head, self.then(rest, second))
        return self._make("then", (first, second), first.nullable and second.nullable)

    def any(self, options: Iterable[Expression]) -> Expression:
        flat: dict[Expression, None] = {}
        mask = 0
        for option in options:
            for part in option.parts if option.kind == "any" else (option,):
                if part.kind == "set":
                    mask |= part.parts[0]
                elif part is not self.none:
                    flat[part] = None
        if mask:
            flat[self._make("set", (mask,), False)] = None
        if self.anything in flat or not flat:
            return self.anything if flat else self.none
        if len(flat) == 1:
            return next(iter(flat))
        parts = tuple(sorted(flat, key=id))
        return self._make("any", parts, any(part.nullable for part in parts))

    def both(self, conditions: Iterable[Expression]) -> Expression:
        flat = dict.fromkeys(
            part for condition in conditions for part in (condition.parts if condition.kind == "both" else (condition,))
        )
        flat.pop(self.anything, None)
        if self.none in flat:
            return self.none
        if self.empty in flat:
            return self.empty if all(part.nullable for part in flat) else self.none
        if len(flat) < 2:
            return next(iter(flat), self.anything)
        parts = tuple(sorted(flat, key=id))
        return self._make("both", parts, all(part.nullable for part in parts))

    def without(self, part: Expression) -> Expression:
        if part.kind == "not":
            inner: Expression = part.parts[0]
            return inner
        if part in (self.none, self.anything):
            return self.anything if part is self.none else self.none
        return self._make("not", (part,), not part.nullable)

    def repeat(self, part: Expression, minimum: int, maximum: int | None) -> Expression:
        if maximum == 0 or part is self.empty or (part is self.none and not minimum):
            return self.empty
        if part is self.none or (minimum, maximum) == (1, 1) or (part.kind == "repeat" and part.parts[1:] == (0, None)):
            return part
        minimum = 0 if part.nullable else minimum
        return self._make("repeat", (part, minimum, maximum), not minimum)

    def derivative(self, expression: Expression, character_class: int) -> Expression:
        """Return the expression for what may follow a character of a class."""
        key = (expression, character_class)
        if key not in self._derivatives:
            self._derivatives[key] = self._derive(expression, character_class)
        return self._derivatives[key]

    def _derive(self, expression: Expression, c: int) -> Expression:
        parts = expression.parts
        match expression.kind:
            case "set":
                return self.empty if parts[0] >> c & 1 else self.none
            case "then":
                first, second = parts
                after = self.then(self.derivative(first, c), second)
                return self.any((after, self.derivative(second, c))) if first.nullable else after
            case "any":
                return self.any(self.derivative(part, c) for part in parts)
            case "both":
                return self.both(self.derivative(part, c) for part in parts)
            case "not":
                return self.without(self.derivative(parts[0], c))
            case "repeat":
                part, minimum, maximum = parts
                fewer = self.repeat(part, max(minimum - 1, 0), None if maximum is None else maximum - 1)
                return self.then(self.derivative(part, c), fewer)
        return self.none

    def search(self, node: PatternNode) -> Expression:
        """Return the expression for the strings in which a pattern matches somewhere.

        Raises ValueError for an anchor or a lookahead at a place where it is not supported.
        """
        later = self.then(self.repeat(self._make("set", (self._all,), False), 1, None), self.anything)
        at_start = self._followed(node, self.anything, at_start=True)
        return self.any((at_start, self.then(later, self._followed(node, self.anything, at_start=False))))

    def whole(self, node: PatternNode) -> Expression:
        """Return the expression for the strings that a pattern without anchors matches as a whole."""
        return self._followed(node, self.empty, at_start=True)

    def _followed(self, node: PatternNode, rest: Expression, *, at_start: bool) -> Expression:
        """Return the expression for a pattern and then `rest`, which is all that follows.

        at_start: whether nothing comes before the pattern.
        """
        match node:
            case Characters(ranges):
                return self.then(self.characters([*ranges]), rest)
            case Sequence(parts):
                n_leading = next((i for i, part in enumerate(parts) if not _is_assertion(part)), len(parts))
                for i, part in reversed([*enumerate(parts)]):
                    if i > n_leading and at_start and _has_start(part):
                        raise ValueError("'^' is not supported at its place")
                    rest = self._followed(part, rest, at_start=at_start and i <= n_leading)
                return rest
            case Choice(options):
                return self.any([self._followed(option, rest, at_start=at_start) for option in options])
            case Repeat(part, minimum, maximum):
                if not _looks(part):
                    return self.then(self.repeat(self.whole(part), minimum, maximum), rest)
                if maximum is None or maximum > MAX_EXPANDED:
                    raise ValueError("an anchor or a lookahead is not supported within a repetition")
                result = rest
                for count in reversed(range(maximum)):
                    more = self._followed(part, result, at_start=at_start and not count)
                    result = more if count < minimum else self.any((rest, more))
                return result
            case Anchor(at_end):
                return self.both((self.empty, rest)) if at_end else rest if at_start else self.none
            case Look(part, negative):
                ahead = self._followed(part, self.anything, at_start=at_start)
                return self.both((self.without(ahead) if negative else ahead, rest))


def _is_assertion(node: PatternNode) -> bool:
    return isinstance(node, (Anchor, Look)) or (isinstance(node, Sequence) and all(map(_is_assertion, node.parts)))


def _looks(node: PatternNode) -> bool:
    match node:
        case Anchor() | Look():
            return True
        case Sequence(parts) | Choice(parts):
            return any(map(_looks, parts))
        case Repeat(part):
            return _looks(part)
    return False


def _has_start(node: PatternNode) -> bool:
    match node:
        case Anchor(at_end):
            return not at_end
        case Sequence(parts) | Choice(parts):
            return any(map(_has_start, parts))
        case Repeat(part) | Look(part):
            return _has_start(part)
    return False


def pattern_sets(node: PatternNode) -> list[Ranges]:
    """List the sets of characters in a pattern."""
    match node:
        case Characters(ranges):
            return [[*ranges]]
        case Sequence(parts) | Choice(parts):
            return [ranges for part in parts for ranges in pattern_sets(part)]
        case Repeat(part) | Look(part):
            return pattern_sets(part)
    return []


def expression_rule(
    expressions: Expressions,
    expression: Expression,
    rules: Rules,
    characters: Callable[[Ranges], str],
    condition: Condition | None = None,
) -> str:
    """Add the rules for the texts of an expression, and return the name of the first one.

    The texts are those that the automaton reaches within MAX_TRANSITIONS, the shortest first. So a text may be allowed
    that is shorter than the longest one of the expression, but none that the expression forbids.

    characters: a function that takes ranges of characters and returns GBNF for one of these characters, or raises
        ValueError if there is none.
    condition: a further condition on the text, whose steps are the same for all characters of a class.

    Raises NoTextError if there is no text, and ValueError if none is found within MAX_TRANSITIONS.
    """
    written: dict[int, str | None] = {}

    def write(mask: int) -> str | None:
        if mask not in written:
            ranges = [each for i, part in enumerate(expressions.classes) if mask >> i & 1 for each in part]
            try:
                written[mask] = characters(merge_ranges(ranges))
            except ValueError:
                written[mask] = None
        return written[mask]

    def named(mask: int) -> str | None:
        gbnf = write(mask)
        return rules.rule(gbnf, "set") if gbnf and len(gbnf) > MAX_INLINE else gbnf

    usable = [i for i in range(len(expressions.classes)) if write(1 << i)]
    start = (expression, condition.start() if condition else None)
    steps: dict[tuple[Expression, object], dict[tuple[Expression, object], int]] = {}
    level, n_transitions = [start], 0
    while level and n_transitions <= MAX_TRANSITIONS and len(steps) * len(usable) <= MAX_STEPS:
        following: dict[tuple[Expression, object], None] = {}
        for state in level:
            after: dict[tuple[Expression, object], int] = {}
            for c in usable:
                rest = expressions.derivative(state[0], c)
                if rest is expressions.none:
                    continue
                then = condition.step(state[1], expressions.classes[c][0][0]) if condition else None
                if condition is None or then is not None:
                    after[rest, then] = after.get((rest, then), 0) | 1 << c
            steps[state] = after
            n_transitions += len(after)
            following |= dict.fromkeys(after)
        level = [state for state in following if state not in steps]
    ends = {state for state in steps if state[0].nullable and (condition is None or condition.accepts(state[1]))}
    alive = _states_that_reach(ends, steps)
    if start not in alive:
        if not level:
            raise NoTextError("no text fulfils all conditions")
        raise ValueError(f"its automaton has more than {MAX_TRANSITIONS} transitions, or takes too long")
    names = {state: rules.fresh_name("state") for state in steps if state in alive}
    for state, name in names.items():
        alternatives = [f"{named(mask)} {names[then]}" for then, mask in steps[state].items() if then in names]
        rules.bodies[name] = " | ".join([*alternatives, *(['""'] if state in ends else [])])
    return names[start]


def _states_that_reach(
    ends: set[tuple[Expression, object]], steps: dict[tuple[Expression, object], dict[tuple[Expression, object], int]]
) -> set[tuple[Expression, object]]:
    before: dict[tuple[Expression, object], list[tuple[Expression, object]]] = {}
    for state, after in steps.items():
        for then in after:
            before.setdefault(then, []).append(state)
    alive, todo = {*ends}, [*ends]
    while todo:
        for state in before.get(todo.pop(), ()):
            if state not in alive:
                alive.add(state)
                todo.append(state)
    return alive


class PatternMatcher:
    """A pattern, for matching of texts in time that is linear in the text for most patterns."""

    def __init__(self, pattern: str) -> None:
        """Raise ValueError for a pattern that is not supported."""
        node = parse_pattern(pattern)
        self._expressions = Expressions(pattern_sets(node))
        self._start = self._expressions.search(node)
        self._classes: dict[int, int] = {}

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches somewhere in a text. Raises ValueError if it needs too much memory."""
        state = self._start
        for code in map(ord, text):
            if code not in self._classes:
                of_code = (any(a <= code <= b for a, b in ranges) for ranges in self._expressions.classes)
                self._classes[code] = next(i for i, inside in enumerate(of_code) if inside)
            state = self._expressions.derivative(state, self._classes[code])
        return state.nullable
