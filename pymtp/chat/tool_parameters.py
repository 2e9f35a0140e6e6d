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
from pymtp.grammar.keywords import COMBINERS, TYPE_KEYWORDS, KeywordReport, SchemaError, find_ref
from pymtp.grammar.merge import Combiner

ALL_TYPES = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
MAX_STEPS = 8  # levels of references and `allOf` in which keywords are looked for that are not held
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
    def _plain(self) -> list[dict[str, Any]] | None:
        return _alternatives(self.schema, self._root)

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
        found = self._plain
        if found is None or len(found) != 1:
            return ()
        return (found[0]["const"],) if "const" in found[0] else tuple(_listed(found[0], "enum"))

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
        found = self._plain
        if found is None:
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

    schema: the plain JSON schema of the arguments object. If the tool's schema combines several of which one must hold,
        it allows what some of them allow; the keywords that combine them are in `combining`.
    required: the names of the parameters that a call must have.
    """

    def __init__(self, tool: Tool) -> None:
        self.root = root = tool.parameters
        found = _alternatives(root, root) or [{}]
        self.schema: Mapping[str, Any] = found[0] if len(found) == 1 else _joined(found)
        self.combining = frozenset() if len(found) == 1 else frozenset(_combining_keywords(root, root))
        self.required = {name for name in _listed(self.schema, "required") if isinstance(name, str)}
        properties = _mapping(self.schema, "properties")
        self._by_name = {name: ToolParameter(part, root) for name, part in properties.items() if part is not False}

    @property
    def names(self) -> list[str]:
        """Return the names of all parameters, in the schema's order."""
        return [*self._by_name, *sorted(self.required - self._by_name.keys())]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> ToolParameter:
        return self._by_name[name] if name in self._by_name else ToolParameter({}, {})


def _alternatives(schema: object, root: object) -> list[dict[str, Any]] | None:
    """Return the plain schemas of which one must hold; None for a schema that is malformed, or too large to combine."""
    try:
        return Combiner(root, KeywordReport("lenient")).alternatives(schema, "#")
    except (SchemaError, RecursionError):
        return None


def _joined(alternatives: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a schema of objects that allows what some of the alternatives allow: it may allow more."""
    names = dict.fromkeys(name for one in alternatives for name in _mapping(one, "properties"))
    properties = {}
    for name in names:
        parts = [_mapping(one, "properties").get(name, True) for one in alternatives]
        several = [*{json.dumps(part, sort_keys=True): part for part in parts if part is not False}.values()]
        properties[name] = several[0] if len(several) == 1 else {"anyOf": several} if several else False
    required = [set(map(str, _listed(one, "required"))) for one in alternatives]
    return {"type": "object", "properties": properties, "required": sorted(set.intersection(*required))}


def _combining_keywords(schema: object, root: object, steps: int = MAX_STEPS) -> set[str]:
    """Return the keywords by which a schema, its references and its `allOf` choose between schemas."""
    if not isinstance(schema, dict) or not steps:
        return set()
    found = schema.keys() & (COMBINERS - {"$ref", "allOf", "nullable"})
    parts = _listed(schema, "allOf")
    with suppress(SchemaError):
        parts += [find_ref(root, schema["$ref"], "#")] if "$ref" in schema else []
    return found.union(*(_combining_keywords(part, root, steps - 1) for part in parts))


def _mapping(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return [*value] if isinstance(value, list) else []


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
