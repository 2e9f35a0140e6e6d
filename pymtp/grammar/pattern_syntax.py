"""The parser of regular expressions (ECMA-262, as in JSON schemas), and the tree that it returns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from pymtp.grammar.characters import ALL_CHARACTERS, Ranges, inverse

MAX_DEPTH = 50  # levels of groups within groups
MAX_REPETITIONS = 2000  # the limit of llama.cpp's grammars; a larger maximum is lowered to this

_DIGITS: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: Ranges = [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)]
_SPACE += [(0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
_LINE_ENDS: Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_SYNTAX = "^$\\.*+?()[]{}|/-"
# A "?" after a quantifier only makes the quantifier lazy. It changes no match of a whole string, so it is ignored.
_QUANTIFIER = re.compile(r"(?:(?P<sign>[*+?])|\{(?P<minimum>[0-9]{1,9})(?:,(?P<maximum>[0-9]{0,9}))?\})\??")
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True)
class Characters:
    """One character of some ranges."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Sequence:
    """Parts that follow one another; without parts, the empty string."""

    parts: tuple[PatternNode, ...]


@dataclass(frozen=True)
class Choice:
    """One of several options."""

    options: tuple[PatternNode, ...]


@dataclass(frozen=True)
class Repeat:
    """A node, `minimum` to `maximum` times. maximum: None for no limit."""

    node: PatternNode
    minimum: int
    maximum: int | None


@dataclass(frozen=True)
class Anchor:
    """The beginning of the string, or its end."""

    at_end: bool


@dataclass(frozen=True)
class Look:
    """A lookahead: what follows must match a node, or must not."""

    node: PatternNode
    negative: bool


PatternNode: TypeAlias = Characters | Sequence | Choice | Repeat | Anchor | Look

ANY_TEXT = Repeat(Characters(tuple(ALL_CHARACTERS)), 0, None)
START, END = Anchor(False), Anchor(True)


def parse_pattern(pattern: str) -> PatternNode:
    """Parse a pattern.

    Raises ValueError, with the reason, for a pattern that is not a regular expression, and for syntax that this parser
    does not know, such as back references.
    """
    parser = _Parser(pattern)
    node = parser.choice(0)
    if parser.at < len(parser.text):
        raise ValueError("a ')' has no '('")
    return node


def literal_pattern(text: str) -> Sequence:
    """Return the pattern that matches exactly a text."""
    return Sequence(tuple(Characters(((ord(c), ord(c)),)) for c in text))


def unanchored(node: PatternNode) -> PatternNode | None:
    """Return a pattern without anchors whose matches of a whole string are the strings that `node` matches somewhere.

    Returns None if `node` looks ahead, or has an anchor within a group.
    """
    options = []
    for option in node.options if isinstance(node, Choice) else (node,):
        parts = [*option.parts] if isinstance(option, Sequence) else [option]
        starts, ends = START in parts[:1], END in parts[-1:]
        inner = parts[starts : len(parts) - ends]
        if any(map(_has_assertion, inner)):
            return None
        before, after = (() if starts else (ANY_TEXT,)), (() if ends or not (inner or starts) else (ANY_TEXT,))
        options.append(Sequence((*before, *inner, *after)))
    return options[0] if len(options) == 1 else Choice(tuple(options))


def _has_assertion(node: PatternNode) -> bool:
    match node:
        case Anchor() | Look():
            return True
        case Sequence(parts) | Choice(parts):
            return any(map(_has_assertion, parts))
        case Repeat(part):
            return _has_assertion(part)
    return False


def length_range(node: PatternNode) -> tuple[int, int | None]:
    """Return the lengths of the shortest and the longest string of a pattern without anchors; None for no limit."""
    match node:
        case Sequence(parts):
            each = [*map(length_range, parts)]
            limits = [longest for _, longest in each if longest is not None]
            return sum(shortest for shortest, _ in each), sum(limits) if len(limits) == len(each) else None
        case Choice(options):
            each = [*map(length_range, options)]
            limits = [longest for _, longest in each if longest is not None]
            return min(shortest for shortest, _ in each), max(limits) if len(limits) == len(each) else None
        case Repeat(part, minimum, maximum):
            shortest, longest = length_range(part)
            if longest == 0:
                return 0, 0
            return shortest * minimum, None if longest is None or maximum is None else longest * maximum
    return 1, 1


def without_needless_limits(node: PatternNode, length: int) -> PatternNode:
    """Return a pattern without the limits of repetitions that no string of up to `length` characters reaches."""
    match node:
        case Sequence(parts):
            return Sequence(tuple(without_needless_limits(part, length) for part in parts))
        case Choice(options):
            return Choice(tuple(without_needless_limits(option, length) for option in options))
        case Repeat(part, minimum, maximum):
            limit = None if maximum is None or maximum >= length else maximum
            return Repeat(without_needless_limits(part, length), minimum, limit)
        case Look(part, negative):
            return Look(without_needless_limits(part, length), negative)
    return node


class _Parser:
    """A recursive descent parser. Each method parses the element that it is named after."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def take(self, text: str) -> bool:
        result = self.text.startswith(text, self.at)
        self.at += len(text) * result
        return result

    def next(self) -> str:
        if self.at == len(self.text):
            raise ValueError("the pattern ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def choice(self, depth: int) -> PatternNode:
        if depth > MAX_DEPTH:
            raise ValueError(f"groups are nested more than {MAX_DEPTH} levels deep")
        options = [self.sequence(depth)]
        while self.take("|"):
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self, depth: int) -> PatternNode:
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            atom = self.atom(depth)
            parts.append(atom if isinstance(atom, (Anchor, Look)) else self.repeat(atom))
        return Sequence(tuple(parts))

    def atom(self, depth: int) -> PatternNode:
        c = self.next()
        if c == "(":
            return self.group(depth)
        if c == "[":
            return Characters(tuple(self.ranges()))
        if c == ".":
            return Characters(tuple(inverse(_LINE_ENDS)))
        if c == "\\":
            return Characters(tuple(self.escape()))
        if c in "^$":
            return END if c == "$" else START
        if c in _SYNTAX and c not in "/-":
            raise ValueError(f"{c!r} is not supported at its place")
        return Characters(((ord(c), ord(c)),))

    def group(self, depth: int) -> PatternNode:
        looks = negative = False
        if self.take("?") and not self.take(":"):
            negative = self.take("!")
            looks = negative or self.take("=")
            if not looks:
                named = re.compile(r"<([A-Za-z_$][\w$]*)>").match(self.text, self.at)
                if not named:
                    raise ValueError("'(?' is supported only in '(?:', '(?=', '(?!' and names of groups")
                self.at = named.end()
        group = self.choice(depth + 1)
        if not self.take(")"):
            raise ValueError("a '(' has no ')'")
        return Look(group, negative) if looks else group

    def repeat(self, node: PatternNode) -> PatternNode:
        found = _QUANTIFIER.match(self.text, self.at)
        if not found:
            return node
        self.at = found.end()
        if found["sign"]:
            return Repeat(node, *_SIGNS[found["sign"]])
        minimum = int(found["minimum"])
        maximum = minimum if found["maximum"] is None else int(found["maximum"] or MAX_REPETITIONS)
        if minimum > MAX_REPETITIONS or maximum < minimum:
            raise ValueError(f"{found[0]} is not a valid number of repetitions, at most {MAX_REPETITIONS}")
        return Repeat(node, minimum, None if found["maximum"] == "" else min(maximum, MAX_REPETITIONS))

    def ranges(self) -> Ranges:
        """Parse a character class, from the character after its opening bracket on."""
        is_inverse = self.take("^")
        result: Ranges = []
        while not self.take("]"):
            member = self.member()
            if not self.text.startswith("-]", self.at) and self.take("-"):
                to = self.member()
                if not (len(member) == len(to) == 1 and member[0][0] == member[0][1] <= to[0][0] == to[0][1]):
                    raise ValueError("a character class has an invalid range")
                member = [(member[0][0], to[0][0])]
            result += member
        return inverse(result) if is_inverse else result

    def member(self) -> Ranges:
        c = self.next()
        if c == "\\":
            return [(0x08, 0x08)] if self.take("b") else self.escape()
        return [(ord(c), ord(c))]

    def escape(self) -> Ranges:
        c = self.next()
        if c.lower() in _CLASSES:
            return _CLASSES[c] if c in _CLASSES else inverse(_CLASSES[c.lower()])
        if c in _CONTROLS:
            code = _CONTROLS[c]
        elif c in "xu":
            digits = "".join(self.next() for _ in range(2 if c == "x" else 4))
            try:
                code = int(digits, 16)
            except ValueError:
                raise ValueError(f"'\\{c}{digits}' is not a character") from None
        elif c in _SYNTAX or c in "\"'" or c in "#%&,:;<=>@_`~! ":
            code = ord(c)
        else:
            raise ValueError(f"the escape '\\{c}' is not supported")
        return [(code, code)]
