"""Grammar rules for the values of tool parameters.

Each value matches its schema, and contains no text that the parser would take for the end of the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from pymtp.chat.qwen_tags import BLOCK_VALUE_END_TAGS, REPEATED_END_TAGS
from pymtp.chat.tags import Tag
from pymtp.chat.text_grammar import NOT_IN_TEXT, TagFreeText
from pymtp.chat.tool_parameters import ToolParameter
from pymtp.grammar.characters import Ranges, inverse, quoted, range_grammar
from pymtp.grammar.json_schema import SchemaConverter
from pymtp.grammar.json_text import literal
from pymtp.grammar.keywords import SchemaError
from pymtp.grammar.pattern_syntax import MAX_REPETITIONS, parse_pattern
from pymtp.grammar.rules import Rules
from pymtp.grammar.strings import CONDITIONS, StringConditions, Writing, read_lengths

# A grammar that counts characters has a rule for each count and each state of the automaton that finds end tags. So the
# longer a string may be, the smaller its automaton must be; a smaller one forbids more text than the end tags.
MAX_COUNTED_EXACTLY = 16  # characters; shorter strings use the automaton of the end tags
MAX_COUNTED = 1000  # shorter strings use the automaton of _SHORT_TAGS, longer strings have no "<"

# Every end tag contains one of these. The beginning of a value is treated as if a newline came before it.
_SHORT_TAGS = [Tag("\n<"), Tag("r> \n")]
_TAG_OPENS: Ranges = [(0x3C, 0x3C)]
_LINE_ENDS: Ranges = [(0x0A, 0x0A)]


class StringRules:
    """The grammar rules for strings that are written between tags without quotes. All tools share these rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        tags = dict.fromkeys([*BLOCK_VALUE_END_TAGS, *REPEATED_END_TAGS])
        self._free = TagFreeText(tags, rules, "text", closing="\n</parameter>")
        self._short = TagFreeText(dict.fromkeys(_SHORT_TAGS), rules, "text", closing="\n")

    def free(self) -> str:
        """Return the name of the rule for any string."""
        return self._free.rule()

    def counted(self, minimum: int, maximum: int | None) -> str:
        """Return the name of the rule for strings of `minimum` to `maximum` characters. maximum: None for no limit."""
        if max(minimum, maximum or 0) <= MAX_COUNTED_EXACTLY:
            return self._free.rule(minimum, maximum)
        if max(minimum, maximum or 0) <= MAX_COUNTED:
            return self._short.rule(minimum, maximum)
        upper = "" if maximum is None else min(maximum, MAX_REPETITIONS)
        return self.rules.rule(f"{_without(_TAG_OPENS, inverse([]))}{{{minimum},{upper}}}", "text")

    def literal(self, text: str) -> str | None:
        """Return GBNF for one string; None if the parser would find the end of the value in that string."""
        unwritable = any(low <= ord(character) <= high for character in text for low, high in NOT_IN_TEXT)
        return None if unwritable or self._free.contains_tag(text) else quoted(text)


def _without(left_out: Ranges, ranges: Ranges) -> str:
    remaining = inverse([*inverse(ranges), *left_out, *NOT_IN_TEXT])
    if not remaining:
        raise ValueError("a character class matches no character that a value can contain")
    return range_grammar(remaining)


# What a value of one line may not begin or end with, because the lines around it would make it an end tag.
_EDGES = parse_pattern(r"^<(?:parameter=|/parameter>|/function>)|</parameter>[ \t\r]*$")
# Otherwise, a value without a newline contains no end tag, and neither does one without "<".
_UNTAGGED = [Writing(partial(_without, _LINE_ENDS), _EDGES, "<"), Writing(partial(_without, _TAG_OPENS))]


class ParameterRules:
    """The grammar rules for the values of one tool's parameters.

    report: the keywords that the rules leave out.
    """

    def __init__(self, root: Mapping[str, Any], strings: StringRules, *, strict: bool) -> None:
        self._strict, self._root, self._strings = strict, root, strings
        self._json = SchemaConverter(root, strings.rules, "strict" if strict else "lenient")
        self.report = self._json.report
        self._conditions = StringConditions(strings.rules, self.report, _UNTAGGED)

    def value(self, parameter: ToolParameter, path: str) -> str:
        """Return the name of the rule for a parameter's value, as it is written between the tags.

        Raises SchemaError if the tool is strict and no grammar can express the schema.
        """
        body = self.raw(parameter, path) if parameter.is_raw else self._json.schema(parameter.schema, path)
        rule = self._strings.rules.rule(body, path.rpartition("/")[2])
        self._json.finish()
        return rule

    def json(self, schema: object, path: str) -> str:
        """Return the name of the rule for JSON values of a schema."""
        rule = self._json.rule_for(schema, path)
        self._json.finish()
        return rule

    # Each of the methods below returns the alternatives of a rule, as GBNF.

    def raw(self, parameter: ToolParameter, path: str) -> str:
        """Return the GBNF alternatives for a value whose strings stand without quotes."""
        try:
            found = self._json.combiner.alternatives(parameter.schema, path)
            if not found:
                raise SchemaError(f"{path}: no value is valid for all of its parts")
            return " | ".join(dict.fromkeys(self._plain(schema, parameter, path) for schema in found))
        except SchemaError:
            if self._strict:
                raise
            self.report.note_schema(path)
            return self._strings.free()

    def _plain(self, schema: dict[str, Any], parameter: ToolParameter, path: str) -> str:
        try:
            values = self._json.listed_values(schema, path)
        except SchemaError:
            if self._strict:
                raise
            self.report.note_schema(path)
            values = None
        if values is not None:
            return self._choices(values, path)
        types = [name for name in self._json.types(schema, path) if name in parameter.types]
        alternatives = [
            self._string(schema, path) if name == "string" else self._strings.rules.known(name) for name in types
        ]
        return " | ".join(alternatives) or self._strings.free()

    def _choices(self, values: list[Any], path: str) -> str:
        alternatives = [self._strings.literal(value) if isinstance(value, str) else literal(value) for value in values]
        if not any(alternatives) or (self._strict and not all(alternatives)):
            raise SchemaError(f"{path} has a value that cannot be written between tags: {json.dumps(values):.80}")
        return " | ".join(filter(None, alternatives))

    def _string(self, schema: dict[str, Any], path: str) -> str:
        if not CONDITIONS.isdisjoint(schema):
            written = self._conditions.grammar(schema, path)
            if written is not None:
                return written
        if not schema.keys() & {"minLength", "maxLength"}:
            return self._strings.free()
        minimum, maximum = read_lengths(schema, path, self.report)
        if not self._strict and maximum is not None and schema["maxLength"] > MAX_COUNTED:
            maximum = None
        return self._strings.counted(minimum, maximum)
