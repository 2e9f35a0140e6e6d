"""Ranges of characters, and their GBNF."""

from __future__ import annotations

Ranges = list[tuple[int, int]]

_LAST = 0x10FFFF  # the last code point
ALL_CHARACTERS: Ranges = [(0, _LAST)]
# JSON's short escapes, for characters that a JSON string cannot contain unescaped.
_JSON_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
# Characters that the grammars do not allow unescaped in a JSON string.
NOT_PLAIN: Ranges = [(0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)]


def json_characters(ranges: Ranges) -> str:
    """Return GBNF for one character of some ranges, as JSON strings write it: escaped where necessary.

    Raises ValueError if no JSON string can contain any of the characters.
    """
    alternatives = [quoted(written) for c, written in _JSON_ESCAPES.items() if any(a <= c <= b for a, b in ranges)]
    plain = inverse([*inverse(ranges), *NOT_PLAIN])
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
    for first, last in merge_ranges(ranges):
        if first > after:
            result.append((after, first - 1))
        after = last + 1
    return [*result, (after, _LAST)] if after <= _LAST else result


def merge_ranges(ranges: Ranges) -> Ranges:
    """Return the ranges in order, with those joined that overlap or touch."""
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
