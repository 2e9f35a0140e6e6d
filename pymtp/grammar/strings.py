"""Rules for strings with patterns, formats and lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from pymtp.grammar.automaton import Expression, Expressions, NoTextError, expression_rule, pattern_sets
from pymtp.grammar.characters import ALL_CHARACTERS, Ranges
from pymtp.grammar.keywords import (
    ANNOTATIONS,
    EXCLUDED_PATTERNS,
    EXCLUDED_VALUES,
    KeywordReport,
    NoValueError,
    SchemaError,
    Several,
    read_size,
)
from pymtp.grammar.pattern_syntax import (
    MAX_REPETITIONS,
    PatternNode,
    length_range,
    literal_pattern,
    parse_pattern,
    unanchored,
    without_needless_limits,
)
from pymtp.grammar.regex import node_grammar, pattern_grammar
from pymtp.grammar.rules import Rules

_DATE = (
    "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-"
    "(?:(?:0[13-9]|1[0-2])-(?:0[1-9]|[12][0-9]|30)|(?:0[13578]|1[02])-31|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{3}})?(?:Z|[-+]{_HOUR}:[0-5][0-9])"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
_ATOM = "[a-zA-Z0-9_+-]{1,32}"
_IN_PATH = r"(?:[a-zA-Z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
_DAYS = "(?:{0}Y(?:{0}M(?:{0}D)?)?|{0}M(?:{0}D)?|{0}D)".format("[0-9]{1,4}")
_SECONDS = "T(?:{0}H(?:{0}M(?:{0}S)?)?|{0}M(?:{0}S)?|{0}S)".format("[0-9]{1,4}")
_URI = rf"[a-zA-Z][a-zA-Z0-9+.-]{{0,15}}:(?://{_LABEL}(?:\.{_LABEL}){{0,3}}(?::[1-9][0-9]{{0,3}})?(?:/{_IN_PATH}{{0,200}})?"
_URI += rf"|[a-zA-Z0-9]{_IN_PATH}{{0,200}})(?:\?{_IN_PATH}{{0,200}})?(?:#{_IN_PATH}{{0,100}})?"
# Formats whose strings a grammar allows, each with a pattern for some of its strings.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:[0-9]{{1,4}}W|{_DAYS}(?:{_SECONDS})?|{_SECONDS})",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    **{f"uuid{n}": f"{_HEX}{{8}}-{_HEX}{{4}}-{n}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}" for n in range(1, 9)},
    "email": rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@(?:{_LABEL}\.){{1,3}}[a-zA-Z]{{2,12}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": f"(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}:{_GROUP}|::(?:{_GROUP}:){{0,5}}{_GROUP}",
    "uri": _URI,
}
FORMATS |= {"idn-email": FORMATS["email"], "idn-hostname": FORMATS["hostname"], "iri": _URI, "url": _URI}
MAX_COUNTED = 64  # characters of strings that are counted beside other conditions, where that can be avoided
CONDITIONS = {"pattern", "format", EXCLUDED_VALUES, EXCLUDED_PATTERNS}  # keywords of StringConditions
_FORMAT_ALONE = {"type", "format", *ANNOTATIONS}
UNRESTRICTED_FORMATS = ("binary", "password")


@lru_cache(maxsize=64)
def format_pattern(name: str) -> PatternNode:
    """Return the pattern of a format."""
    return parse_pattern(f"^(?:{FORMATS[name]})$")


@lru_cache(maxsize=128)  # the formats are few, and one schema has them often
def _format_grammar(name: str, characters: Callable[[Ranges], str]) -> str:
    return f"({pattern_grammar(f'^(?:{FORMATS[name]})$', characters)})"


@dataclass(frozen=True)
class TextConditions:
    """The conditions that a schema sets for a string, besides its lengths.

    patterns: each matches somewhere. formats: each matches the whole string. excluded: patterns that match nowhere.
    values: strings that are not allowed.
    """

    patterns: tuple[PatternNode, ...] = ()
    formats: tuple[PatternNode, ...] = ()
    excluded: tuple[PatternNode, ...] = ()
    values: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None

    @property
    def nodes(self) -> list[PatternNode]:
        """Return all patterns."""
        return [*self.patterns, *self.formats, *self.excluded, *map(literal_pattern, self.values)]


def read_lengths(schema: dict[str, Any], path: str, report: KeywordReport) -> tuple[int, int | None]:
    """Return the minLength and maxLength of a schema; None for no limit.

    A maximum beyond MAX_REPETITIONS is lowered. Reports a minimum beyond it, and a maximum below the minimum.
    """
    sizes: dict[str, int | None] = {}
    for keyword in ("minLength", "maxLength"):
        try:
            sizes[keyword] = read_size(schema, keyword, path)
        except SchemaError as error:
            report.skip_malformed(path, keyword, error)
    low, high = sizes.get("minLength") or 0, sizes.get("maxLength")
    if low > MAX_REPETITIONS:
        report.leave_out(path, "minLength", f"it is more than {MAX_REPETITIONS}")
        low = 0
    if high is not None and low > high:
        report.skip_malformed(path, "maxLength", SchemaError(f"{path}/maxLength is less than minLength"))
        high = None
    return low, None if high is None else min(high, MAX_REPETITIONS)


class Writing(NamedTuple):
    """A way to write strings.

    characters: a function that takes ranges of characters and returns GBNF for one of them.
    excluded: a pattern that no string may match, because it could not be read again; None if all strings can.
    within: a character that all strings have that match `excluded`.
    """

    characters: Callable[[Ranges], str]
    excluded: PatternNode | None = None
    within: str = ""

    def conditions(self, given: TextConditions) -> TextConditions:
        """Return the conditions of strings that are written like this."""
        if self.excluded is None or not all(map(self._may_have, (*given.patterns, *given.formats))):
            return given
        return replace(given, excluded=(*given.excluded, self.excluded))

    def is_large(self, given: TextConditions) -> bool:
        """Return whether the rules for these conditions count many characters only because of `excluded`."""
        if self.conditions(given) is given:
            return False
        longest = [given.high, *(length_range(whole)[1] for node in given.patterns if (whole := unanchored(node)))]
        return any(length is not None and length > MAX_COUNTED for length in longest)

    def _may_have(self, node: PatternNode) -> bool:
        """Return whether a string in which a pattern matches may have the character `within`."""
        whole = unanchored(node)
        code = ord(self.within)
        return whole is None or any(low <= code <= high for ranges in pattern_sets(whole) for low, high in ranges)


class StringConditions:
    """The writer of rules for strings with patterns and formats. writings: they are tried in order."""

    def __init__(self, rules: Rules, report: KeywordReport, writings: Sequence[Writing]) -> None:
        self._rules, self._report, self._writings = rules, report, writings

    def grammar(self, schema: dict[str, Any], path: str, patterns: Sequence[str] = ()) -> str | None:
        """Return GBNF for the strings of a plain schema, without quotes; None if it has no conditions but lengths.

        patterns: further patterns that must match.

        Conditions that no grammar can express are reported and left out.
        """
        name = schema.get("format")
        if isinstance(name, str) and name in FORMATS and schema.keys() <= _FORMAT_ALONE and not patterns:
            return _format_grammar(name, self._writings[0].characters)
        found = self._read(schema, path, patterns)
        if not found.nodes:
            return None
        attempts: list[tuple[list[str], TextConditions]] = [([], found)]
        lengths: list[str] = [name for name in ("minLength", "maxLength") if name in schema]
        if found.formats and (found.patterns or lengths):
            attempts.append((["format"], replace(found, formats=())))
        if lengths:
            formats = () if found.patterns else found.formats
            attempts.append((lengths, replace(found, formats=formats, low=0, high=None)))
        error: Exception | None = None
        for left_out, attempt in attempts:
            for keyword in left_out:
                if keyword == "format":
                    self._report.note(path, keyword)
                else:
                    self._report.leave_out(path, keyword, f"beside other conditions: {error}")
            if not attempt.nodes:
                return None
            try:
                return self._written(attempt)
            except NoTextError as problem:
                if not attempt.formats:
                    raise NoValueError(f"{path}: no string fulfils all of its conditions") from problem
                error = error or problem
            except (ValueError, RecursionError) as problem:
                error = error or problem
        keyword = next((keyword for keyword in ("pattern", "format") if keyword in schema), "not")
        self._report.leave_out(path, keyword, f"{schema.get(keyword)!r:.80} cannot be enforced: {error}")
        return None

    def _read(self, schema: dict[str, Any], path: str, more: Sequence[str]) -> TextConditions:
        patterns = [*map(parse_pattern, more)]
        for pattern in Several.of(schema["pattern"]) if "pattern" in schema else ():
            if not isinstance(pattern, str):
                self._report.skip_malformed(path, "pattern", SchemaError(f"{path}/pattern must be a string"))
                continue
            try:
                patterns.append(parse_pattern(pattern))
            except ValueError as error:
                self._report.leave_out(path, "pattern", f"{pattern!r:.80} cannot be enforced: {error}")
        formats = []
        for name in Several.of(schema["format"]) if "format" in schema else ():
            if isinstance(name, str) and name in FORMATS:
                formats.append(format_pattern(name))
            elif name not in UNRESTRICTED_FORMATS and not patterns:  # a pattern beside a name of one's own says it all
                self._report.note(path, "format")
        excluded = []
        for pattern in schema.get(EXCLUDED_PATTERNS, ()):
            try:
                excluded.append(parse_pattern(pattern))
            except ValueError as error:
                self._report.leave_out(path, "not", f"{pattern!r:.80} cannot be enforced: {error}")
        values = [value for value in schema.get(EXCLUDED_VALUES, ()) if isinstance(value, str)]
        lengths = read_lengths(schema, path, self._report)
        return TextConditions(tuple(patterns), tuple(formats), tuple(excluded), tuple(values), *lengths)

    def _written(self, conditions: TextConditions) -> str:
        """Return GBNF for the strings that fulfil all conditions. Raises ValueError if no grammar can express them."""
        problem: ValueError | None = None
        for writing in sorted(self._writings, key=lambda one: one.is_large(conditions)):
            own, characters = writing.conditions(conditions), writing.characters
            key = own, characters
            try:
                if key not in self._rules.written:
                    self._rules.written[key] = self._simple(own, characters) or self._automaton(own, characters)
                return self._rules.written[key]
            except ValueError as error:
                problem = problem or error
        raise problem or ValueError("no characters")

    def _simple(self, conditions: TextConditions, characters: Callable[[Ranges], str]) -> str | None:
        """Return GBNF if a single pattern decides which strings are allowed, otherwise None."""
        nodes = conditions.nodes
        node = unanchored(nodes[0]) if len(nodes) == 1 and not (conditions.excluded or conditions.values) else None
        if node is None:
            return None
        high = conditions.high
        if conditions.low or high is not None:
            shortest, longest = length_range(node)
            if shortest < conditions.low or (high is not None and (longest is None or longest > high)):
                return None
        return f"({node_grammar(node, characters)})"

    def _automaton(self, conditions: TextConditions, characters: Callable[[Ranges], str]) -> str:
        if conditions.high is not None:
            limit = conditions.high
            patterns, formats, excluded = (
                tuple(without_needless_limits(node, limit) for node in nodes)
                for nodes in (conditions.patterns, conditions.formats, conditions.excluded)
            )
            conditions = replace(conditions, patterns=patterns, formats=formats, excluded=excluded)
        nodes = conditions.nodes
        expressions = Expressions([ALL_CHARACTERS, *(ranges for node in nodes for ranges in pattern_sets(node))])
        search = expressions.search
        every: list[Expression] = [search(node) for node in (*conditions.patterns, *conditions.formats)]
        every += [expressions.without(search(node)) for node in conditions.excluded]
        every += [expressions.without(expressions.whole(literal_pattern(value))) for value in conditions.values]
        if conditions.low or conditions.high is not None:
            any_character = expressions.characters(ALL_CHARACTERS)
            every.append(expressions.repeat(any_character, conditions.low, conditions.high))
        return expression_rule(expressions, expressions.both(every), self._rules, characters)
