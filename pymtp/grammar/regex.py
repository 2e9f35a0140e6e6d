"""Regular expressions (ECMA-262, as in JSON schemas) as GBNF for the strings of JSON that match them."""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_NESTED = 50
MAX_REPETITIONS = 2000  # llama.cpp's grammars repeat no more often; what is more becomes this

Ranges = list[tuple[int, int]]

_LAST = 0x10FFFF
_DIGITS: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: Ranges = [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)]
_SPACE += [(0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
_LINE_ENDS: Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_SYNTAX = "^$\\.*+?()[]{}|/-"
# a lazy one, with a "?" behind, matches the same strings
_QUANTIFIER = re.compile(r"(?:(?P<sign>[*+?])|\{(?P<least>[0-9]{1,9})(?:,(?P<most>[0-9]{0,9}))?\})\??")
# how a string of JSON writes characters that cannot stand for themselves
_ESCAPED = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
NOT_PLAIN: Ranges = [(0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)]


def pattern_grammar(pattern: str, characters: Callable[[Ranges], str] | None = None) -> str:
    """GBNF for the strings, without their quotes. Raises ValueError, with the reason, for what is no regular expression
    or cannot be said in a grammar: what looks around, refers back, or matches within a string.

    characters: GBNF for one of some characters; as a string of JSON has them, without it."""
    escaped = len(pattern) - len(pattern[:-1].rstrip("\\")) - 1
    if not (len(pattern) > 1 and pattern[0] == "^" and pattern[-1] == "$" and escaped % 2 == 0):
        raise ValueError("it is not anchored with '^' and '$'")
    reader = _Reader(pattern[1:-1], characters or json_characters)
    grammar = reader.alternatives(0)
    if reader.at < len(reader.text):
        raise ValueError("a ')' has no '('")
    return grammar


def json_characters(ranges: Ranges) -> str:
    """GBNF for one of the characters, as a string of JSON has them."""
    ways = [quoted(written) for c, written in _ESCAPED.items() if any(a <= c <= b for a, b in ranges)]
    plain = inverse(_joined([*inverse(ranges), *NOT_PLAIN]))
    if plain:
        single = plain[0][0] == plain[-1][1]
        ways.append(quoted(chr(plain[0][0])) if single else range_grammar(plain))
    if not ways:
        raise ValueError("a class has no character that a string can have")
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def quoted(text: str) -> str:
    """GBNF for a text."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in text) + '"'


def inverse(ranges: Ranges) -> Ranges:
    """All other characters."""
    found, after = [], 0
    for first, last in _joined(ranges):
        if first > after:
            found.append((after, first - 1))
        after = last + 1
    return [*found, (after, _LAST)] if after <= _LAST else found


def _joined(ranges: Ranges) -> Ranges:
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def range_grammar(ranges: Ranges) -> str:
    """GBNF for one of the characters as they are."""
    return f"[{''.join(f'{_character(a)}-{_character(b)}' if a < b else _character(a) for a, b in ranges)}]"


def _character(code: int) -> str:
    if code < 0x80:
        return chr(code) if chr(code).isalnum() else f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


class _Reader:
    """Reads an expression by recursive descent. The names of its methods are those of what they read."""

    def __init__(self, text: str, characters: Callable[[Ranges], str]) -> None:
        self.text = text
        self.at = 0
        self.characters = characters

    def take(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def next(self) -> str:
        if self.at == len(self.text):
            raise ValueError("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self, nested: int) -> str:
        if nested > MAX_NESTED:
            raise ValueError(f"its groups are nested more than {MAX_NESTED} deep")
        ways = [self.sequence(nested)]
        while self.take("|"):
            ways.append(self.sequence(nested))
        return " | ".join(ways)

    def sequence(self, nested: int) -> str:
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self.atom(nested) + self.quantifier())
        return " ".join(parts) or '""'

    def atom(self, nested: int) -> str:
        c = self.next()
        if c == "(":
            if self.take("?") and not self.take(":"):
                raise ValueError("a group is more than a group: no grammar can look around, or name one")
            group = self.alternatives(nested + 1)
            if not self.take(")"):
                raise ValueError("a '(' has no ')'")
            return f"({group})"
        if c == "[":
            return self.characters(self.ranges())
        if c == ".":
            return self.characters(inverse(_LINE_ENDS))
        if c == "\\":
            return self.characters(self.escape())
        if c in _SYNTAX and c not in "/-":
            raise ValueError(f"there is a {c!r} where a grammar can have none")
        return self.characters([(ord(c), ord(c))])

    def quantifier(self) -> str:
        found = _QUANTIFIER.match(self.text, self.at)
        if not found:
            return ""
        self.at = found.end()
        if found["sign"]:
            return found["sign"]
        least = int(found["least"])
        most = least if found["most"] is None else int(found["most"] or MAX_REPETITIONS)
        if least > MAX_REPETITIONS or most < least:
            raise ValueError(f"{found[0]} is no number of repetitions, of {MAX_REPETITIONS} at most")
        return f"{{{least},{min(most, MAX_REPETITIONS) if found['most'] != '' else ''}}}"

    def ranges(self) -> Ranges:
        """A class, after its bracket."""
        others = self.take("^")
        found: Ranges = []
        while not self.take("]"):
            some = self.member()
            if not self.text.startswith("-]", self.at) and self.take("-"):
                to = self.member()
                if not (len(some) == len(to) == 1 and some[0][0] == some[0][1] <= to[0][0] == to[0][1]):
                    raise ValueError("a range in a class is none")
                some = [(some[0][0], to[0][0])]
            found += some
        return inverse(found) if others else found

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
                raise ValueError(f"'\\{c}{digits}' is no character") from None
        elif c in _SYNTAX or c in "\"'" or c in "#%&,:;<=>@_`~! ":
            code = ord(c)
        else:
            raise ValueError(f"no grammar has '\\{c}'")
        return [(code, code)]
