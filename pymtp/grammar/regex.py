"""Conversion of regular expressions to GBNF, where one pattern alone decides which strings are allowed."""

from __future__ import annotations

from collections.abc import Callable

from pymtp.grammar.characters import Ranges, json_characters
from pymtp.grammar.pattern_syntax import Characters, Choice, PatternNode, Repeat, Sequence, parse_pattern, unanchored


def pattern_grammar(pattern: str, characters: Callable[[Ranges], str] = json_characters) -> str:
    """Convert a pattern to GBNF for the strings in which it matches, without their quotes.

    characters: a function that takes ranges of characters and returns GBNF for one of these characters.

    Raises ValueError, with the reason, for a pattern that is not a regular expression, and for a pattern that looks
    ahead or has an anchor within a group: `StringRules` takes them.
    """
    node = unanchored(parse_pattern(pattern))
    if node is None:
        raise ValueError("it looks ahead, or an anchor is within a group")
    return node_grammar(node, characters)


def node_grammar(node: PatternNode, characters: Callable[[Ranges], str] = json_characters) -> str:
    """Return GBNF alternatives for the strings that a pattern without anchors matches as a whole."""
    match node:
        case Characters(ranges):
            return characters([*ranges])
        case Sequence(parts):
            return " ".join(_grouped(part, characters) for part in parts) or '""'
        case Choice(options):
            return " | ".join(node_grammar(option, characters) for option in options)
        case Repeat(part, minimum, maximum):
            return _grouped(part, characters, repeated=True) + repetitions(minimum, maximum)
    raise TypeError(f"{node} has no GBNF")


def repetitions(minimum: int, maximum: int | None) -> str:
    """Return GBNF's suffix for a number of repetitions. maximum: None for no limit."""
    if maximum is None and minimum < 2:
        return "+" if minimum else "*"
    if (minimum, maximum) == (0, 1):
        return "?"
    return f"{{{minimum},{'' if maximum is None else maximum}}}"


def _grouped(node: PatternNode, characters: Callable[[Ranges], str], *, repeated: bool = False) -> str:
    gbnf = node_grammar(node, characters)
    return gbnf if isinstance(node, Characters) or (isinstance(node, Repeat) and not repeated) else f"({gbnf})"
