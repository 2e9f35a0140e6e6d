"""Tests of pattern_grammar: it allows the JSON strings that match a regular expression."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pymtp.grammar.regex import pattern_grammar

LETTERS = 'ab1_ -]"\\\n\t/é→🙂'

characters = st.sampled_from([re.escape(c) if c in '\\-]"/ ' else c for c in LETTERS])
members = characters | st.sampled_from([r"\d", r"\w", r"\S", r"\s", "a-f", r"\x41-\u0062", r"\n"])
classes = st.builds(
    lambda parts, inverse: f"[{'^' * inverse}{''.join(parts)}]", st.lists(members, min_size=1), st.booleans()
)
atoms = characters | classes | st.sampled_from([".", r"\d", r"\W", r"\s", r"\t", r"\u00e9"])
quantifiers = st.sampled_from(["", "", "*", "+", "?", "*?", "{2}", "{1,}", "{0,2}", "{1,3}?"])


def has_characters(atom: str) -> bool:
    r"""Return whether any character matches an atom; none matches "[^\s\S]"."""
    return any(map(re.compile(atom, re.ASCII).fullmatch, map(chr, range(0x20, 0x250))))


atoms = atoms.filter(has_characters)
expressions = st.recursive(
    atoms,
    lambda parts: (
        st.lists(parts, min_size=1, max_size=3).map("".join)
        | st.lists(parts, min_size=1, max_size=3).map("|".join)
        | st.builds("({}{}){}".format, st.sampled_from(["", "?:"]), parts, quantifiers)
        | st.builds("{}{}".format, atoms, quantifiers)
    ),
    max_leaves=8,
)


def python_regex(grammar: str) -> re.Pattern[str]:
    """Convert a grammar of pattern_grammar() to a regular expression of Python, which has the same escapes."""

    def one(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0].strip(" ")
        return f"(?:{re.escape(found[1])})".replace(r"\\U", r"\U")

    return re.compile(re.sub(r'"([^"]*)"|\[[^]]*\]| ', one, grammar))


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(expressions, st.data())
def test_pattern_grammar_allows_the_strings_that_match(expression: str, data: st.DataObject) -> None:
    """Compare with Python's re, whose classes differ from ECMA-262's only in characters that are not among LETTERS."""
    pattern = re.compile(expression, re.ASCII)
    allows, matches = python_regex(pattern_grammar(f"^({expression})$")).fullmatch, pattern.fullmatch
    matching = data.draw(st.from_regex(pattern, fullmatch=True, alphabet=st.sampled_from(LETTERS + "cdefABC23")))
    assume(len(matching) < 12)  # Python may take exponential time
    for text in {matching, *data.draw(st.lists(st.text(LETTERS, max_size=5), max_size=8))}:
        assert bool(allows(json.dumps(text, ensure_ascii=False)[1:-1])) == bool(matches(text))


@given(expressions, st.lists(st.text(LETTERS + "n", max_size=5), min_size=10, max_size=20))
def test_pattern_grammar_allows_only_json_strings(expression: str, raw: list[str]) -> None:
    allows = python_regex(pattern_grammar(f"^({expression})$")).fullmatch
    for text in filter(allows, raw):
        json.loads(f'"{text}"')


@pytest.mark.parametrize(
    ("pattern", "reason"),
    {
        "^(a$": "no '\\)'",
        "^a)$": "no '\\('",
        "^[a$": "too early",
        "^(?<=a)b$": "'\\(\\?'",
        "^(?=a)b$": "looks ahead",
        "(^a)b": "within a group",
        r"^(a)\1$": r"the escape '\\1' is not supported",
        r"^\bword$": r"'\\b'",
        r"^\p{L}$": r"'\\p'",
        r"^\uD83D\uDE42$": "no character",
        r"^\x4$": "not a character",
        "^*$": "'\\*'",
        "^a**$": "'\\*'",
        "^a{2,1}$": "repetitions",
        "^a{3000}$": "repetitions",
        "^a{,2}$": "'{'",
        "^[b-a]$": "range",
        r"^[\d-z]$": "range",
        "^" + "(" * 60 + ")" * 60 + "$": "nested",
    }.items(),
)
def test_pattern_that_no_grammar_can_express_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        pattern_grammar(pattern)
