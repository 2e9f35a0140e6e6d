"""How the value of a parameter is written in a tag, by its schema, and read back: a string as it is, all else as JSON.

Where a schema allows a string and others, too, text that is JSON of the others is one of them, and all other text the
string. That is so only where the others are free: text of a string that reads as a number must be valid as a number.
Otherwise all of it is JSON, the string as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from pymtp.chat.literals import NoValueError, json_value, python_value
from pymtp.chat.tools import Tool
from pymtp.grammar.keywords import HEEDED, SchemaError, find
from pymtp.grammar.relax import joined

ALL = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
MAX_STEPS = 64  # of references and alternatives within each other
MAX_PARTS = 1024  # that are looked at: alternatives that share parts by references are more than a schema is long
_BOUNDS = frozenset().union(*(keywords for name, keywords in HEEDED.items() if name != "string"))


class Parameter:
    """One parameter of a tool. root: the schema that holds its own, for references."""

    def __init__(self, schema: object, root: Mapping[str, Any]) -> None:
        self._root = root
        self.schema = schema

    @cached_property
    def types(self) -> frozenset[str]:
        """Those that the schema allows."""
        return self._types(self.schema, MAX_STEPS, iter(range(MAX_PARTS)))

    @cached_property
    def is_text(self) -> bool:
        """Whether it is a string, and no other."""
        return self.types == {"string"}

    @cached_property
    def is_raw(self) -> bool:
        """Whether a string of it is written as it is, without the quotes of JSON."""
        return "string" in self.types and (self.is_text or self._free(self.schema, MAX_STEPS, iter(range(MAX_PARTS))))

    @cached_property
    def choices(self) -> tuple[Any, ...]:
        """All values, where the schema lists them."""
        schema = resolved(self.schema, self._root)
        if not isinstance(schema, dict):
            return ()
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        return tuple(values) if isinstance(values, list) else ()

    def json(self, text: str) -> str:
        """The value of a text, as JSON. What is of no type that the schema allows is a string, or what JSON it is."""
        if self.is_text or (self.is_raw and text in self.choices):
            return _json(text)
        stripped = text.strip()
        for read in (json_value, python_value):
            try:
                value = read(stripped)
            except NoValueError:
                continue
            fitted = self._fitted(value)
            if fitted is not None:
                return stripped if read is json_value and fitted[0] is value else _json(fitted[0])
        return self._of_no_type(text)

    def _fitted(self, value: Any) -> tuple[Any] | None:
        """The value as the types have it; None where they have none."""
        if isinstance(value, str):
            if self.is_raw:
                return None  # its quotes belong to it
            if "string" in self.types:
                return (value,)
            try:
                inner = python_value(value.strip())
            except NoValueError:
                return None
            return None if isinstance(inner, str) else self._fitted(inner)
        if isinstance(value, float) and value.is_integer() and self.types & {"integer", "number"} == {"integer"}:
            return (int(value),)
        return (value,) if _type_of(value) & self.types else None

    def _of_no_type(self, text: str) -> str:
        if "string" not in self.types:
            for read in (json_value, python_value):
                with suppress(NoValueError):
                    return _json(read(text))
        return _json(text)

    def _types(self, schema: object, steps: int, left: Iterator[int]) -> frozenset[str]:
        if steps == 0 or next(left, None) is None:
            return ALL
        schema = resolved(schema, self._root)
        if not isinstance(schema, dict):
            return ALL
        if (types := _named(schema)) is not None:
            return types
        for keyword in ("oneOf", "anyOf"):
            if isinstance(parts := schema.get(keyword), list) and parts:
                return frozenset().union(*(self._types(part, steps - 1, left) for part in parts))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return frozenset().union(*map(_type_of, values))
        return frozenset({"string"}) if schema.keys() & HEEDED["string"] else ALL

    def _free(self, schema: object, steps: int, left: Iterator[int]) -> bool:
        """Whether all that is no string is only held to its type."""
        if steps == 0 or next(left, None) is None:
            return False
        schema = resolved(schema, self._root)
        if not isinstance(schema, dict):
            return True
        for keyword in ("oneOf", "anyOf"):
            if isinstance(parts := schema.get(keyword), list) and parts:
                return all(
                    self._types(part, steps - 1, left) == {"string"} or self._free(part, steps - 1, left)
                    for part in parts
                )
        if "const" in schema or "enum" in schema:
            return schema is resolved(self.schema, self._root) or self._types(schema, steps, left) == {"string"}
        return not schema.keys() & _BOUNDS


class Parameters:
    """Those of a tool, by name. required: names of those that a call must have."""

    def __init__(self, tool: Tool) -> None:
        self.root = tool.parameters
        schema = resolved(tool.parameters, tool.parameters)
        self.schema: Mapping[str, Any] = schema if isinstance(schema, dict) else {}
        properties, required = self.schema.get("properties"), self.schema.get("required")
        self.required = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        self._each: dict[str, Parameter] = {}
        if isinstance(properties, dict):
            self._each = {name: Parameter(part, self.root) for name, part in properties.items()}

    @property
    def names(self) -> list[str]:
        """In the order of the schema."""
        return [*self._each, *sorted(self.required - self._each.keys())]

    def __contains__(self, name: str) -> bool:
        return name in self._each

    def __getitem__(self, name: str) -> Parameter:
        return self._each[name] if name in self._each else Parameter({}, {})


def resolved(schema: object, root: object) -> object:
    """What a schema refers to, with what it holds in `allOf`."""
    for _ in range(MAX_STEPS):
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            try:
                schema = find(root, schema["$ref"], "#")
            except SchemaError:
                return {}
        elif "allOf" in schema:
            schema = joined({**schema, "allOf": schema["allOf"] if isinstance(schema["allOf"], list) else []}, root)
        else:
            return schema
    return {}


def _named(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """The types that a schema names, where it names any."""
    types = schema.get("type")
    each = [types] if isinstance(types, str) else types
    if not isinstance(each, list) or not each or not all(isinstance(name, str) for name in each):
        return None
    return frozenset(each) if ALL.issuperset(each) else ALL


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


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
