"""Tool parameters: how the schema of a parameter decides how its value is written between tags, and parsed.

A string is written without quotes, every other value as JSON. If a schema allows strings and other types, text that is
JSON of one of the other types gets that type, and all other text is a string. This works only if the schema sets no
bounds besides the types: the string `12` would be parsed as a number, and might be outside the bounds for numbers. If
there are such bounds, strings are written as JSON, too, with quotes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from pymtp.chat.lenient_json import NotJsonError, parse_json, parse_python_literal
from pymtp.chat.tools import Tool
from pymtp.grammar.keywords import ANNOTATIONS, TYPE_KEYWORDS, KeywordReport, SchemaError, find_ref
from pymtp.grammar.merge import Combiner

ALL_TYPES = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
MAX_STEPS = 64  # levels of references and alternatives that are followed
# Keywords that bound values of types other than string.
_VALUE_KEYWORDS = frozenset().union(*(keywords for name, keywords in TYPE_KEYWORDS.items() if name != "string"))


class ToolParameter:
    """One parameter of a tool.

    schema: the JSON schema of the parameter's value.
    root: the JSON schema of all parameters, which references point into.
    """

    def __init__(self, schema: object, root: Mapping[str, Any]) -> None:
        self._root = root
        self.schema = schema

    @cached_property
    def _allowed(self) -> tuple[frozenset[str], bool]:
        return self._read()

    @property
    def types(self) -> frozenset[str]:
        """Return the types that the schema allows."""
        return self._allowed[0]

    @property
    def is_string(self) -> bool:
        """Return whether the schema allows only strings."""
        return self.types == {"string"}

    @property
    def is_raw(self) -> bool:
        """Return whether strings are written between the tags without JSON's quotes and escapes."""
        return "string" in self.types and (self.is_string or self._allowed[1])

    @cached_property
    def choices(self) -> tuple[Any, ...]:
        """Return all allowed values if the schema lists them, otherwise ()."""
        schema = resolve_refs(self.schema, self._root)
        if not isinstance(schema, dict):
            return ()
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        return tuple(values) if isinstance(values, list) else ()

    def to_json(self, text: str) -> str:
        """Convert the text between the parameter's tags to JSON.

        Text that has none of the types that the schema allows becomes a string if the schema allows strings. Otherwise
        it keeps the type that it has as JSON, and text that is not JSON becomes a string.
        """
        if self.is_string or (self.is_raw and text in self.choices):
            return _dump_json(text)
        stripped = text.strip()
        unfit: object = text
        for read in (parse_json, parse_python_literal):
            try:
                value = read(stripped)
            except NotJsonError:
                continue
            converted = self._convert(value)
            if converted is not None:
                return stripped if read is parse_json and converted[0] is value else _dump_json(converted[0])
            if unfit is text and "string" not in self.types:
                unfit = value
        return _dump_json(unfit)

    def _convert(self, value: Any) -> tuple[Any] | None:
        """Return a tuple of the value, converted to an allowed type; None if it has no allowed type."""
        if isinstance(value, str):
            if self.is_raw:
                return None  # raw strings are written without quotes: these quotes belong to the string
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

    def _read(self) -> tuple[frozenset[str], bool]:
        """Return the types that the schema allows, and whether it bounds values besides strings by their type alone."""
        try:
            found = Combiner(self._root, KeywordReport("lenient")).alternatives(self.schema, "#")
        except (SchemaError, RecursionError):
            return ALL_TYPES, not isinstance(self.schema, dict)
        if not found:
            return ALL_TYPES, True
        each = [_read_plain(schema, alone=len(found) == 1) for schema in found]
        unbounded = all(types == {"string"} or part_unbounded for types, part_unbounded in each)
        return frozenset().union(*(types for types, _ in each)), unbounded


def _read_plain(schema: Mapping[str, Any], *, alone: bool) -> tuple[frozenset[str], bool]:
    """Return the types of a plain schema, and whether it bounds values besides strings by their type alone.

    alone: whether the schema is the only one, so that `ToolParameter.choices` knows the values that it lists.
    """
    types = _named_types(schema)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if types is None and isinstance(values, list) and values:
        types = frozenset().union(*map(_type_of, values))
    if types is None:
        types = frozenset({"string"}) if schema.keys() & TYPE_KEYWORDS["string"] else ALL_TYPES
    if "const" in schema or "enum" in schema:
        return types, alone or types == {"string"}
    return types, not schema.keys() & _VALUE_KEYWORDS


class ToolParameters:
    """The parameters of a tool, by name.

    schema: the JSON schema of the arguments object.
    required: the names of the parameters that a call must have.
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

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> ToolParameter:
        return self._by_name[name] if name in self._by_name else ToolParameter({}, {})


def resolve_refs(schema: object, root: object) -> object:
    """Follow a schema's references, merge its `allOf`, and return the result; {} if a reference is not resolved."""
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


def merge_all_of(schema: dict[str, Any], root: object) -> dict[str, Any]:
    """Return the schema with the schemas of its `allOf` merged into it.

    The properties and the required names of all these schemas are joined. For other keywords, the first value is used.
    """
    every = schema.get("allOf")
    if not isinstance(every, list):
        return schema
    merged = {keyword: value for keyword, value in schema.items() if keyword != "allOf"}
    known = set[int]()  # a part that is referred to several times is merged once
    for part in every:
        if len(every) > 1 or merged.keys() - ANNOTATIONS:
            part = _follow_ref(part, root)
        if not isinstance(part, dict) or id(part) in known:
            continue
        known.add(id(part))
        for keyword, value in part.items():
            own = merged.get(keyword)
            if keyword == "properties" and isinstance(own, dict) and isinstance(value, dict):
                merged[keyword] = {**value, **own}
            elif keyword == "required" and isinstance(own, list) and isinstance(value, list):
                merged[keyword] = [*own, *value]
            else:
                merged.setdefault(keyword, value)
    return merged


def _follow_ref(part: object, root: object) -> object:
    if isinstance(part, dict) and "$ref" in part:
        with suppress(SchemaError):
            return find_ref(root, part["$ref"], "#")
    return part


def _named_types(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the types in a schema's "type": all types if one is unknown, None if the keyword is missing or invalid."""
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
