"""Weaker forms of a schema that no grammar can express: keywords that a grammar cannot enforce are left out.

They are used only for the schemas of tools. Clients often cannot change these schemas, so an unsupported keyword must
not make a request fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pymtp.grammar.keywords import ANNOTATIONS, TYPE_KEYWORDS, TYPES, SchemaError, find_ref

_BOUND_KEYWORDS = TYPE_KEYWORDS["integer"] | {"minItems", "maxItems"}


def weaker_schemas(schema: object, root: object) -> Iterator[object]:
    """Yield weaker forms of a schema, the strictest first; the last form has only the schema's types.

    root: the document that the schema's references point into.

    If no grammar can express any of the forms, or if there are none, the caller must allow any value.
    """
    if not isinstance(schema, dict):
        return
    schema = merge_all_of(schema, root)
    types = _known_types(schema)
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
    if not types and not schema.keys() - ANNOTATIONS:
        return
    known = {*types} or {name for name, keywords in TYPE_KEYWORDS.items() if keywords & schema.keys()} - {"integer"}
    supported = set().union(*(TYPE_KEYWORDS[name] for name in known if name in TYPE_KEYWORDS))
    rest = {keyword: value for keyword, value in schema.items() if keyword in supported}
    if "object" in known:
        rest = _with_required(rest)
    for keyword in ("pattern", "format", "prefixItems"):
        if keyword in rest:
            yield {**typed, keyword: rest.pop(keyword)}
    yield {**typed, **rest}
    yield {
        **typed,
        **{keyword: value for keyword, value in rest.items() if keyword not in _BOUND_KEYWORDS | {"maxLength"}},
    }
    if types:
        yield typed


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


def _known_types(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type")
    each = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    return list(dict.fromkeys(name for name in each if isinstance(name, str) and name in TYPES))


def _with_required(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema, with an empty property added for each required name that has no property."""
    properties, required = schema.get("properties"), schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    merged = {**schema, "required": names}
    if isinstance(properties, dict) or names:
        own = properties if isinstance(properties, dict) else {}
        merged["properties"] = {**own, **{name: {} for name in names if name not in own}}
    return merged
