"""Schemas that may stand for one that no grammar can hold a text to: they leave out what it cannot be held to.

For those of strangers, which tools bring: a keyword too many must not refuse a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pymtp.grammar.keywords import HEEDED, SILENT, TYPES, SchemaError, find

_BOUNDS = HEEDED["integer"] | {"minItems", "maxItems"}


def weaker_schemas(schema: object, root: object) -> Iterator[object]:
    """The nearest first. The last has types alone, or is none where any value may stand for it. root: the document."""
    if not isinstance(schema, dict):
        return
    schema = joined(schema, root)
    types = _types(schema)
    typed = {"type": types} if types else {}
    if "$ref" in schema:
        yield {"$ref": schema["$ref"]}
        return
    for keyword in ("oneOf", "anyOf"):
        if isinstance(schema.get(keyword), list) and "properties" not in schema:
            yield {keyword: schema[keyword]}
            return
    for keyword in ("const", "enum"):
        if keyword in schema:
            yield {**typed, keyword: schema[keyword]}
    if not types and not schema.keys() - SILENT:
        return
    known = {*types} or {name for name, keywords in HEEDED.items() if keywords & schema.keys()} - {"integer"}
    heeded = set().union(*(HEEDED[name] for name in known if name in HEEDED))
    rest = {keyword: value for keyword, value in schema.items() if keyword in heeded}
    if "object" in known:
        rest = _with_required(rest)
    for keyword in ("pattern", "format", "prefixItems"):
        if keyword in rest:
            yield {**typed, keyword: rest.pop(keyword)}
    yield {**typed, **rest}
    yield {**typed, **{keyword: value for keyword, value in rest.items() if keyword not in _BOUNDS | {"maxLength"}}}
    if types:
        yield typed


def joined(schema: dict[str, Any], root: object) -> dict[str, Any]:
    """A schema that has those within `allOf` as its own keywords: what one says where two differ."""
    every = schema.get("allOf")
    if not isinstance(every, list):
        return schema
    found = {keyword: value for keyword, value in schema.items() if keyword != "allOf"}
    known = set[int]()  # what the same references mean is joined once
    for part in every:
        if len(every) > 1 or found.keys() - SILENT:
            part = _meant(part, root)
        if not isinstance(part, dict) or id(part) in known:
            continue
        known.add(id(part))
        for keyword, value in part.items():
            own = found.get(keyword)
            if keyword == "properties" and isinstance(own, dict) and isinstance(value, dict):
                found[keyword] = {**value, **own}
            elif keyword == "required" and isinstance(own, list) and isinstance(value, list):
                found[keyword] = [*own, *value]
            else:
                found.setdefault(keyword, value)
    return found


def _meant(part: object, root: object) -> object:
    if isinstance(part, dict) and "$ref" in part:
        with suppress(SchemaError):
            return find(root, part["$ref"], "#")
    return part


def _types(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type")
    each = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    return list(dict.fromkeys(name for name in each if isinstance(name, str) and name in TYPES))


def _with_required(schema: dict[str, Any]) -> dict[str, Any]:
    """Names that are required are properties, too."""
    properties, required = schema.get("properties"), schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    found = {**schema, "required": names}
    if isinstance(properties, dict) or names:
        own = properties if isinstance(properties, dict) else {}
        found["properties"] = {**own, **{name: {} for name in names if name not in own}}
    return found
