"""Grammar rules for the values of tool parameters.

Each value matches its schema, and contains no text that the parser would take for the end of the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from pymtp.chat.qwen_tags import BLOCK_VALUE_END_TAGS
from pymtp.chat.tags import Tag
from pymtp.chat.text_grammar import NOT_IN_TEXT, TagFreeText
from pymtp.chat.tool_parameters import MAX_STEPS, ToolParameter, resolve_refs
from pymtp.grammar.json_schema import FORMATS, SchemaConverter, literal, non_empty_list, size_bounds
from pymtp.grammar.keywords import SchemaError, check_keywords, find_ref, types_of
from pymtp.grammar.regex import MAX_REPETITIONS, Ranges, inverse, pattern_grammar, quoted, range_grammar
from pymtp.grammar.relax import weaker_schemas
from pymtp.grammar.rules import Rules

# A grammar that counts characters has a rule for each count and each state of the automaton that finds end tags. So the
# longer a string may be, the smaller its automaton must be; a smaller one forbids more text than the end tags.
MAX_COUNTED_EXACTLY = 16  # characters; shorter strings use the automaton of the end tags
MAX_COUNTED = 1000  # shorter strings use the automaton of _SHORT_TAGS, longer strings have no "<"

# Every end tag contains one of these. The beginning of a value is treated as if a newline came before it.
_SHORT_TAGS = [Tag("\n<"), Tag("r>\n")]
_TAG_OPENS: Ranges = [(0x3C, 0x3C)]
_LINE_ENDS: Ranges = [(0x0A, 0x0A)]


class StringRules:
    """The grammar rules for strings that are written between tags without quotes. All tools share these rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._free = TagFreeText(dict.fromkeys(BLOCK_VALUE_END_TAGS), rules, "text")
        self._short = TagFreeText(dict.fromkeys(_SHORT_TAGS), rules, "text")

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

    def pattern(self, pattern: str) -> str:
        """Return GBNF for the strings that match a pattern and contain no newline, and so no end tag.

        If the pattern demands a newline, the strings contain no "<" instead.

        Raises SchemaError for a pattern that no grammar can express.
        """
        error: Exception | None = None
        for left_out in (_LINE_ENDS, _TAG_OPENS):
            try:
                return f"({pattern_grammar(pattern, partial(_without, left_out))})"
            except ValueError as problem:
                error = error or problem
        raise SchemaError(f"the pattern {pattern!r:.80} cannot be enforced: {error}") from error

    def literal(self, text: str) -> str | None:
        """Return GBNF for one string; None if the parser would find the end of the value in that string."""
        unwritable = any(low <= ord(character) <= high for character in text for low, high in NOT_IN_TEXT)
        return None if unwritable or self._free.contains_tag(text) else quoted(text)


def _without(left_out: Ranges, ranges: Ranges) -> str:
    remaining = inverse([*inverse(ranges), *left_out, *NOT_IN_TEXT])
    if not remaining:
        raise ValueError("a character class matches no character that a value can contain")
    return range_grammar(remaining)


class ParameterRules:
    """The grammar rules for the values of one tool's parameters."""

    def __init__(self, root: Mapping[str, Any], strings: StringRules, *, strict: bool) -> None:
        self._strict, self._root, self._strings = strict, root, strings
        self._json = SchemaConverter(root, strings.rules, None if strict else weaker_schemas)

    def value(self, parameter: ToolParameter, path: str) -> str:
        """Return the name of the rule for a parameter's value, as it is written between the tags.

        Raises SchemaError if the tool is strict and no grammar can express the schema.
        """
        body = (
            self.raw(parameter.schema, path, MAX_STEPS)
            if parameter.is_raw
            else self._json.schema(parameter.schema, path)
        )
        rule = self._strings.rules.rule(body, path.rpartition("/")[2])
        self._json.finish()
        return rule

    def json(self, schema: object, path: str) -> str:
        """Return the name of the rule for JSON values of a schema."""
        rule = self._json.rule_for(schema, path)
        self._json.finish()
        return rule

    # Each of the methods below returns the alternatives of a rule, as GBNF.

    def raw(self, schema: object, path: str, steps: int) -> str:
        """Return the GBNF alternatives for a value whose strings stand without quotes.

        steps: number of further levels that the schema may nest.
        """
        if self._strict:
            return self._exact(follow_refs(schema, self._root, path), path, steps)
        schema = resolve_refs(schema, self._root)
        for weaker in weaker_schemas(schema, self._root):
            try:
                return self._exact(weaker, path, steps)
            except SchemaError:
                continue
        return self._strings.free()

    def _exact(self, schema: object, path: str, steps: int) -> str:
        if not isinstance(schema, dict) or not steps:
            raise SchemaError(f"{path} must be an object, not {schema!r:.40}")
        types = types_of(schema, path)
        check_keywords(schema, types, path)
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                parts = non_empty_list(schema, keyword, path)
                return " | ".join(self.raw(part, f"{path}/{keyword}/{i}", steps - 1) for i, part in enumerate(parts))
        if "const" in schema or "enum" in schema:
            choices = [schema["const"]] if "const" in schema else non_empty_list(schema, "enum", path)
            return self._choices(choices, path)
        if not types:
            return self._string(schema, path)
        alternatives = [
            self._string(schema, path) if name == "string" else self._strings.rules.known(name) for name in types
        ]
        return " | ".join(alternatives)

    def _choices(self, values: list[Any], path: str) -> str:
        alternatives = [self._strings.literal(value) if isinstance(value, str) else literal(value) for value in values]
        if not any(alternatives) or (self._strict and not all(alternatives)):
            raise SchemaError(f"{path} has a value that cannot be written between tags: {json.dumps(values):.80}")
        return " | ".join(filter(None, alternatives))

    def _string(self, schema: dict[str, Any], path: str) -> str:
        if "pattern" in schema:
            if not isinstance(schema["pattern"], str):
                raise SchemaError(f"{path}/pattern must be a string")
            return self._strings.pattern(schema["pattern"])
        if "format" in schema:
            if schema["format"] not in FORMATS:
                raise SchemaError(f"{path} has a format that is none of {', '.join(FORMATS)}")
            return self._strings.rules.known(schema["format"])
        if not schema.keys() & {"minLength", "maxLength"}:
            return self._strings.free()
        minimum, maximum = size_bounds(schema, "Length", path)
        if not self._strict and maximum is not None and maximum > MAX_COUNTED:
            maximum = None
        return self._strings.counted(minimum, maximum)


def follow_refs(schema: object, root: object, path: str) -> object:
    """Follow a schema's references, and return the result. Raises SchemaError if a reference cannot be resolved."""
    for _ in range(MAX_STEPS):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        check_keywords(schema, [], path)
        schema = find_ref(root, schema["$ref"], path)
    raise SchemaError(f"{path} refers to itself")
