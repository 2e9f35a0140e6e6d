"""Tool parameters: how a value is written in its tag by the parameter's schema, and how it is parsed back.

A string is written without quotes, every other value as JSON. Where a schema allows strings and other types, text that
is JSON of one of the other types has that type, and all other text is a string. This holds only where the schema bounds
the other types by nothing but their type: a string that looks like a number is parsed as a number, and must be valid as
one. Otherwise strings are written as JSON, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from pymtp.chat.lenient_json import NotJsonError, parse_json, parse_python_literal
from pymtp.chat.tools import Tool
from pymtp.grammar.keywords import TYPE_KEYWORDS, SchemaError, find_ref
from pymtp.grammar.relax import merge_all_of

ALL_TYPES = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
MAX_STEPS = 64  # references and alternatives that are followed, one within another
# Subschemas that are visited. Alternatives that share parts by references may be far more than the schema is long.
MAX_VISITS = 1024
_VALUE_KEYWORDS = frozenset().union(*(keywords for name, keywords in TYPE_KEYWORDS.items() if name != "string"))


class ToolParameter:
    """One parameter of a tool.

    schema: that of its value. root: the schema of all parameters, which references point into.
    """

    def __init__(self, schema: object, root: Mapping[str, Any]) -> None:
        self._root = root
        self.schema = schema

    @cached_property
    def types(self) -> frozenset[str]:
        """Return the types that the schema allows."""
        return self._types(self.schema, MAX_STEPS, iter(range(MAX_VISITS)))

    @cached_property
    def is_string(self) -> bool:
        """Return whether every value is a string."""
        return self.types == {"string"}

    @cached_property
    def is_raw(self) -> bool:
        """Return whether strings stand in the tag without the quotes of JSON."""
        return "string" in self.types and (
            self.is_string or self._other_types_unbounded(self.schema, MAX_STEPS, iter(range(MAX_VISITS)))
        )

    @cached_property
    def choices(self) -> tuple[Any, ...]:
        """Return all values, where the schema lists them."""
        schema = resolve_refs(self.schema, self._root)
        if not isinstance(schema, dict):
            return ()
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        return tuple(values) if isinstance(values, list) else ()

    def to_json(self, text: str) -> str:
        """Return the value that a text stands for, as JSON.

        A text of no type that the schema allows stays a string where strings are allowed; otherwise it keeps the type
        that its JSON has, and is a string where it is no JSON.
        """
        if self.is_string or (self.is_raw and text in self.choices):
            return _dump_json(text)
        stripped = text.strip()
        for read in (parse_json, parse_python_literal):
            try:
                value = read(stripped)
            except NotJsonError:
                continue
            converted = self._convert(value)
            if converted is not None:
                return stripped if read is parse_json and converted[0] is value else _dump_json(converted[0])
        return self._without_fitting_type(text)

    def _convert(self, value: Any) -> tuple[Any] | None:
        """Return the value in an allowed type, within a tuple; None where no allowed type holds it."""
        if isinstance(value, str):
            if self.is_raw:
                return None  # a raw string has no quotes: these are part of it
            if "string" in self.types:
                return (value,)
            try:
                inner = parse_python_literal(value.strip())
            except NotJsonError:
                return None
            return None if isinstance(inner, str) else self._convert(inner)
        if isinstance(value, float) and value.is_integer() and self.types & {"integer", "number"} == {"integer"}:
            return (int(value),)
        return (value,) if _type_of(value) & self.types else None

    def _without_fitting_type(self, text: str) -> str:
        if "string" not in self.types:
            for read in (parse_json, parse_python_literal):
                with suppress(NotJsonError):
                    return _dump_json(read(text))
        return _dump_json(text)

    def _types(self, schema: object, steps: int, visits: Iterator[int]) -> frozenset[str]:
        if steps == 0 or next(visits, None) is None:
            return ALL_TYPES
        schema = resolve_refs(schema, self._root)
        if not isinstance(schema, dict):
            return ALL_TYPES
        if (types := _named_types(schema)) is not None:
            return types
        for keyword in ("oneOf", "anyOf"):
            if isinstance(parts := schema.get(keyword), list) and parts:
                return frozenset().union(*(self._types(part, steps - 1, visits) for part in parts))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return frozenset().union(*map(_type_of, values))
        return frozenset({"string"}) if schema.keys() & TYPE_KEYWORDS["string"] else ALL_TYPES

    def _other_types_unbounded(self, schema: object, steps: int, visits: Iterator[int]) -> bool:
        """Return whether the schema bounds values other than strings by their type alone."""
        if steps == 0 or next(visits, None) is None:
            return False
        schema = resolve_refs(schema, self._root)
        if not isinstance(schema, dict):
            return True
        for keyword in ("oneOf", "anyOf"):
            if isinstance(parts := schema.get(keyword), list) and parts:
                return all(
                    self._types(part, steps - 1, visits) == {"string"}
                    or self._other_types_unbounded(part, steps - 1, visits)
                    for part in parts
                )
        if "const" in schema or "enum" in schema:
            return schema is resolve_refs(self.schema, self._root) or self._types(schema, steps, visits) == {"string"}
        return not schema.keys() & _VALUE_KEYWORDS


class ToolParameters:
    """The parameters of a tool, by name.

    schema: that of the arguments object. required: the names of parameters that a call must have.
    """

    def __init__(self, tool: Tool) -> None:
        self.root = tool.parameters
        schema = resolve_refs(tool.parameters, tool.parameters)
        self.schema: Mapping[str, Any] = schema if isinstance(schema, dict) else {}
        properties, required = self.schema.get("properties"), self.schema.get("required")
        self.required = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        self._by_name: dict[str, ToolParameter] = {}
        if isinstance(properties, dict):
            self._by_name = {name: ToolParameter(part, self.root) for name, part in properties.items()}

    @property
    def names(self) -> list[str]:
        """Return the names of all parameters, in the schema's order."""
        return [*self._by_name, *sorted(self.required - self._by_name.keys())]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> ToolParameter:
        return self._by_name[name] if name in self._by_name else ToolParameter({}, {})


def resolve_refs(schema: object, root: object) -> object:
    """Return the schema behind a schema's references, with its `allOf` merged into it; {} where a reference fails."""
    for _ in range(MAX_STEPS):
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            try:
                schema = find_ref(root, schema["$ref"], "#")
            except SchemaError:
                return {}
        elif "allOf" in schema:
            schema = merge_all_of(
                {**schema, "allOf": schema["allOf"] if isinstance(schema["allOf"], list) else []}, root
            )
        else:
            return schema
    return {}


def _named_types(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the types of the "type" keyword: all types where one is unknown, None where there is no valid keyword."""
    types = schema.get("type")
    names = [types] if isinstance(types, str) else types
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return frozenset(names) if ALL_TYPES.issuperset(names) else ALL_TYPES


def _type_of(value: object) -> frozenset[str]:
    match value:
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case None:
            return frozenset({"null"})
        case list():
            return frozenset({"array"})
    return frozenset({"object"})


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
