"""The keywords of JSON schemas that grammars can follow, and what references mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

SILENT = {  # keywords that no value has to follow
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions"),
}
HEEDED = {  # by type
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
# what is followed, and then no other, the type at most
ALONE = ("$ref", "oneOf", "anyOf", "const", "enum", "pattern", "format", "prefixItems")
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: is_number(value) and value == math.floor(value),
    "number": lambda value: is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


class SchemaError(ValueError):
    """A schema that is none, or that no grammar can hold a text to."""


def find(root: object, ref: object, path: str) -> object:
    """What a reference means. Raises SchemaError where it is nothing in the same document."""
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        raise SchemaError(f"{path}: $ref {ref!r:.80} is not one into the same document, as '#/$defs/name'")
    found = root
    for step in ref.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and len(name) < 10 and int(name) < len(found):
            found = found[int(name)]
        else:
            raise SchemaError(f"{path}: cannot resolve $ref {ref!r:.80}: there is no {name!r:.40}")
    return found


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def types_of(schema: dict[str, Any], path: str) -> list[str]:
    """Those that a schema names, each once."""
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if (
        not isinstance(types, list)
        or not all(isinstance(name, str) for name in types)
        or ("type" in schema and not types)
    ):
        raise SchemaError(f"{path}/type must be a type, or a list of them")
    if unknown := [name for name in types if name not in TYPES]:
        raise SchemaError(f"{path} has the type {unknown[0]!r:.40}, which is none of {', '.join(TYPES)}")
    return list(dict.fromkeys(types))


def check_keywords(schema: dict[str, Any], types: list[str], path: str) -> None:
    keywords = schema.keys() - SILENT
    alone = next((keyword for keyword in ALONE if keyword in schema), None)
    if alone:
        heeded = {alone} if alone in ("$ref", "oneOf", "anyOf") else {alone, "type"}
    elif types:
        heeded = {"type"}.union(*(HEEDED.get(name, set()) for name in types))
    else:
        heeded = next((known for known in HEEDED.values() if known & keywords), set())
        if heeded is HEEDED["integer"]:  # without the type, any number would do
            heeded = set()
    for keyword in sorted(keywords - heeded):
        beside = f" beside {alone!r}" if alone else ""
        raise SchemaError(f"{path} has the keyword {keyword!r:.40}, which is not supported{beside}")
