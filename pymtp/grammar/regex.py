"""Conversion of regular expressions (ECMA-262, as in JSON schemas) to GBNF for the JSON strings that match them."""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_DEPTH = 50  # levels of groups within groups
MAX_REPETITIONS = 2000  # the limit of llama.cpp's grammars; a larger maximum is lowered to this

Ranges = list[tuple[int, int]]

_LAST = 0x10FFFF  # the last code point
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
# JSON's short escapes, for characters that a JSON string cannot contain unescaped.
_JSON_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
# Characters that the grammars do not allow unescaped in a JSON string.
NOT_PLAIN: Ranges = [(0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)]


def pattern_grammar(pattern: str, characters: Callable[[Ranges], str] | None = None) -> str:
    """Convert a pattern to GBNF for the strings that match it, without their quotes.

    characters: a function that takes ranges of characters and returns GBNF for one of these characters. The default
        is `json_characters`.

    Raises ValueError, with the reason, for a pattern that is not a regular expression, and for a pattern that no
    grammar can express: one with lookaround or back references, or one that is not anchored with ^ and $.
    """
    escaped = len(pattern) - len(pattern[:-1].rstrip("\\")) - 1
    if not (len(pattern) > 1 and pattern[0] == "^" and pattern[-1] == "$" and escaped % 2 == 0):
        raise ValueError("the pattern is not anchored with '^' and '$'")
    parser = _RegexParser(pattern[1:-1], characters or json_characters)
    grammar = parser.alternatives(0)
    if parser.at < len(parser.text):
        raise ValueError("a ')' has no '('")
    return grammar


def json_characters(ranges: Ranges) -> str:
    """Return GBNF for one character of some ranges, as JSON strings write it: escaped where necessary."""
    alternatives = [quoted(written) for c, written in _JSON_ESCAPES.items() if any(a <= c <= b for a, b in ranges)]
    plain = inverse(_merge_ranges([*inverse(ranges), *NOT_PLAIN]))
    if plain:
        single = plain[0][0] == plain[-1][1]
        alternatives.append(quoted(chr(plain[0][0])) if single else range_grammar(plain))
    if not alternatives:
        raise ValueError("a character class matches no character that a JSON string can contain")
    return alternatives[0] if len(alternatives) == 1 else f"({' | '.join(alternatives)})"


def quoted(text: str) -> str:
    """Return a GBNF literal for a string."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in text) + '"'


def inverse(ranges: Ranges) -> Ranges:
    """Return the ranges of all characters that are not in the given ranges."""
    result, after = [], 0
    for first, last in _merge_ranges(ranges):
        if first > after:
            result.append((after, first - 1))
        after = last + 1
    return [*result, (after, _LAST)] if after <= _LAST else result


def _merge_ranges(ranges: Ranges) -> Ranges:
    result: Ranges = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def range_grammar(ranges: Ranges) -> str:
    """Return GBNF for one character of some ranges, without JSON's escapes."""
    return (
        f"[{''.join(f'{_gbnf_character(a)}-{_gbnf_character(b)}' if a < b else _gbnf_character(a) for a, b in ranges)}]"
    )


def _gbnf_character(code: int) -> str:
    if code < 0x80:
        return chr(code) if chr(code).isalnum() else f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


class _RegexParser:
    """A recursive descent parser of regular expressions. Each method parses the element that it is named after."""

    def __init__(self, text: str, characters: Callable[[Ranges], str]) -> None:
        self.text = text
        self.at = 0
        self.characters = characters

    def take(self, text: str) -> bool:
        result = self.text.startswith(text, self.at)
        self.at += len(text) * result
        return result

    def next(self) -> str:
        if self.at == len(self.text):
            raise ValueError("the pattern ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise ValueError(f"groups are nested more than {MAX_DEPTH} levels deep")
        alternatives = [self.sequence(depth)]
        while self.take("|"):
            alternatives.append(self.sequence(depth))
        return " | ".join(alternatives)

    def sequence(self, depth: int) -> str:
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self.atom(depth) + self.quantifier())
        return " ".join(parts) or '""'

    def atom(self, depth: int) -> str:
        c = self.next()
        if c == "(":
            if self.take("?") and not self.take(":"):
                raise ValueError("'(?' is supported only in '(?:': a grammar cannot look around, or name groups")
            group = self.alternatives(depth + 1)
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
            raise ValueError(f"{c!r} is not supported at its place")
        return self.characters([(ord(c), ord(c))])

    def quantifier(self) -> str:
        result = _QUANTIFIER.match(self.text, self.at)
        if not result:
            return ""
        self.at = result.end()
        if result["sign"]:
            return result["sign"]
        minimum = int(result["minimum"])
        maximum = minimum if result["maximum"] is None else int(result["maximum"] or MAX_REPETITIONS)
        if minimum > MAX_REPETITIONS or maximum < minimum:
            raise ValueError(f"{result[0]} is not a valid number of repetitions, at most {MAX_REPETITIONS}")
        return f"{{{minimum},{min(maximum, MAX_REPETITIONS) if result['maximum'] != '' else ''}}}"

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
