"""The keywords of JSON schemas that a grammar can express, and the lookup of references."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

ANNOTATIONS = {  # keywords that do not restrict the values
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions"),
}
TYPE_KEYWORDS = {  # supported keywords, by type
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
# Keywords that cannot be combined with other keywords than "type", or with none at all. If a schema has several of
# them, the first one in this tuple is kept, and the others are reported as not supported beside it.
EXCLUSIVE_KEYWORDS = ("$ref", "oneOf", "anyOf", "const", "enum", "pattern", "format", "prefixItems")
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
    """A malformed schema, or one that no grammar can express."""


def find_ref(root: object, ref: object, path: str) -> object:
    """Return the schema that a reference points to. Raises SchemaError if the document has no such schema."""
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        raise SchemaError(f"{path}: $ref {ref!r:.80} does not point into the same document, as '#/$defs/name' does")
    target = root
    for step in ref.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and len(name) < 10 and int(name) < len(target):
            target = target[int(name)]
        else:
            raise SchemaError(f"{path}: cannot resolve $ref {ref!r:.80}: there is no {name!r:.40}")
    return target


def is_number(value: object) -> bool:
    """Return whether a value is a JSON number. A bool, which is an int in Python, is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def types_of(schema: dict[str, Any], path: str) -> list[str]:
    """Return the types in a schema's "type", each once; [] without a "type". Raises SchemaError for unknown types."""
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if (
        not isinstance(types, list)
        or not all(isinstance(name, str) for name in types)
        or ("type" in schema and not types)
    ):
        raise SchemaError(f"{path}/type must be the name of a type, or a list of such names")
    if unknown := [name for name in types if name not in TYPES]:
        raise SchemaError(f"{path} has the type {unknown[0]!r:.40}, which is none of {', '.join(TYPES)}")
    return list(dict.fromkeys(types))


def check_keywords(schema: dict[str, Any], types: list[str], path: str) -> None:
    """Raise SchemaError for keywords that no grammar can express, alone or with others of the schema."""
    keywords = schema.keys() - ANNOTATIONS
    exclusive = next((keyword for keyword in EXCLUSIVE_KEYWORDS if keyword in schema), None)
    if exclusive:
        supported = {exclusive} if exclusive in ("$ref", "oneOf", "anyOf") else {exclusive, "type"}
    elif types:
        supported = {"type"}.union(*(TYPE_KEYWORDS.get(name, set()) for name in types))
    else:
        supported = next((known for known in TYPE_KEYWORDS.values() if known & keywords), set())
        # Without a "type", these bounds allow fractions, too, and no grammar can express bounds of fractions.
        if supported is TYPE_KEYWORDS["integer"]:
            supported = set()
    for keyword in sorted(keywords - supported):
        beside = f" beside {exclusive!r}" if exclusive else ""
        raise SchemaError(f"{path} has the keyword {keyword!r:.40}, which is not supported{beside}")
