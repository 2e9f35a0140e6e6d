"""The values of parameters as rules of a grammar: such texts that the reader finds their end, and a value of the schema
in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from pymtp.chat import written
from pymtp.chat.free_text import NEVER, FreeText
from pymtp.chat.tags import Mark
from pymtp.chat.tool_parameters import MAX_STEPS, Parameter, resolved
from pymtp.grammar.json_schema import FORMATS, Converter, counts, listed, literal
from pymtp.grammar.keywords import SchemaError, check_keywords, find, types_of
from pymtp.grammar.regex import MAX_REPETITIONS, Ranges, inverse, pattern_grammar, quoted, range_grammar
from pymtp.grammar.relax import weaker_schemas
from pymtp.grammar.rules import Rules

FEW = 16  # characters that are counted beside the whole automaton of the marks; more, beside a smaller one
MANY = 1000  # that are counted beside this

# Every mark has the one or the other of these. A value begins as behind a newline.
_SHORT = [Mark("\n<"), Mark("r>\n")]
_TAG_OPENS: Ranges = [(0x3C, 0x3C)]
_LINE_ENDS: Ranges = [(0x0A, 0x0A)]


class TextRules:
    """Rules of strings that stand in a tag as they are. Tools share them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._free = FreeText(written.ENDS_LINES, rules, "text")
        self._short = FreeText(_SHORT, rules, "text")

    def free(self) -> str:
        return self._free.rule(self._free.automaton.begin("\n"))

    def counted(self, least: int, most: int | None) -> str:
        if max(least, most or 0) <= FEW:
            return self._free.counted(self._free.automaton.begin("\n"), least, most)
        if max(least, most or 0) <= MANY:
            return self._short.counted(self._short.automaton.begin("\n"), least, most)
        upper = "" if most is None else min(most, MAX_REPETITIONS)
        return self.rules.rule(f"{_without(_TAG_OPENS, inverse([]))}{{{least},{upper}}}", "text")

    def pattern(self, pattern: str) -> str:
        """Of strings without a newline; where the pattern needs one, of strings without "<". Raises SchemaError."""
        error: Exception | None = None
        for left_out in (_LINE_ENDS, _TAG_OPENS):
            try:
                return f"({pattern_grammar(pattern, partial(_without, left_out))})"
            except ValueError as problem:
                error = error or problem
        raise SchemaError(f"the pattern {pattern!r:.80} cannot be held to: {error}") from error

    def literal(self, text: str) -> str | None:
        """GBNF of a text; None of one in which the reader would find an end."""
        state = self._free.automaton.begin("\n")
        for character in text:
            after = self._free.automaton.step(state, character)
            if after is None or any(low <= ord(character) <= high for low, high in NEVER):
                return None
            state = after
        return quoted(text)


def _without(left_out: Ranges, ranges: Ranges) -> str:
    kept = inverse([*inverse(ranges), *left_out, *NEVER])
    if not kept:
        raise ValueError("a class has no character that a text can have")
    return range_grammar(kept)


class ValueRules:
    """Rules of the values of one tool's parameters."""

    def __init__(self, root: Mapping[str, Any], texts: TextRules, *, strict: bool) -> None:
        self._strict, self._root, self._texts = strict, root, texts
        self._json = Converter(root, texts.rules, None if strict else weaker_schemas)

    def value(self, parameter: Parameter, path: str) -> str:
        """The name of a rule. Raises SchemaError for what no text can be held to, where that is asked for."""
        says = (
            self.raw(parameter.schema, path, MAX_STEPS)
            if parameter.is_raw
            else self._json.schema(parameter.schema, path)
        )
        rule = self._texts.rules.rule(says, path.rpartition("/")[2])
        self._json.finish()
        return rule

    def json(self, schema: object, path: str) -> str:
        """The name of a rule of the schema's JSON."""
        rule = self._json.part(schema, path)
        self._json.finish()
        return rule

    # each of these gives alternatives

    def raw(self, schema: object, path: str, steps: int) -> str:
        if self._strict:
            return self._exact(followed(schema, self._root, path), path, steps)
        schema = resolved(schema, self._root)
        for way in weaker_schemas(schema, self._root):
            try:
                return self._exact(way, path, steps)
            except SchemaError:
                continue
        return self._texts.free()

    def _exact(self, schema: object, path: str, steps: int) -> str:
        if not isinstance(schema, dict) or not steps:
            raise SchemaError(f"{path} must be an object, not {schema!r:.40}")
        types = types_of(schema, path)
        check_keywords(schema, types, path)
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                parts = listed(schema, keyword, path)
                return " | ".join(self.raw(part, f"{path}/{keyword}/{i}", steps - 1) for i, part in enumerate(parts))
        if "const" in schema or "enum" in schema:
            return self._choices([schema["const"]] if "const" in schema else listed(schema, "enum", path), path)
        if not types:
            return self._string(schema, path)
        ways = [self._string(schema, path) if name == "string" else self._texts.rules.known(name) for name in types]
        return " | ".join(ways)

    def _choices(self, values: list[Any], path: str) -> str:
        ways = [self._texts.literal(value) if isinstance(value, str) else literal(value) for value in values]
        if not any(ways) or (self._strict and not all(ways)):
            raise SchemaError(f"{path} has a value that no tag can hold: {json.dumps(values):.80}")
        return " | ".join(filter(None, ways))

    def _string(self, schema: dict[str, Any], path: str) -> str:
        if "pattern" in schema:
            if not isinstance(schema["pattern"], str):
                raise SchemaError(f"{path}/pattern must be a text")
            return self._texts.pattern(schema["pattern"])
        if "format" in schema:
            if schema["format"] not in FORMATS:
                raise SchemaError(f"{path} has a format that is none of {', '.join(FORMATS)}")
            return self._texts.rules.known(schema["format"])
        if not schema.keys() & {"minLength", "maxLength"}:
            return self._texts.free()
        least, most = counts(schema, "Length", path)
        if not self._strict and most is not None and most > MANY:
            most = None
        return self._texts.counted(least, most)


def followed(schema: object, root: object, path: str) -> object:
    """What a schema refers to. Raises SchemaError where it is nothing."""
    for _ in range(MAX_STEPS):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        check_keywords(schema, [], path)
        schema = find(root, schema["$ref"], path)
    raise SchemaError(f"{path} refers to itself")
