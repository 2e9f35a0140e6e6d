"""JSON schemas as GBNF. llama.cpp converts them, and passes over what it does not know; that is refused here instead,
so that a text always is what its schema says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.native import ffi, last_error, lib

MAX_DEPTH = 64  # of nested values: llama.cpp walks them by recursion
MAX_LENGTH = 1000  # of a string: so does std::regex, over names
MAX_TEXT = 2**20

_SILENT = {  # keywords that no value has to follow
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions"),
}
_HEEDED = {  # by type, what llama.cpp's converter follows
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
# what it follows, and then no other, the type at most
_ALONE = ("$ref", "oneOf", "anyOf", "const", "enum", "pattern", "format", "prefixItems")
_BOUNDS = (
    ("minimum", "exclusiveMinimum"),
    ("maximum", "exclusiveMaximum"),
)  # the first of them, and then not the other


def schema_text(schema: str | Mapping[str, Any]) -> str:
    """A schema as JSON text. Raises InvalidRequestError for what is none, or has keywords that cannot be held to."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequestError(f"json_schema is not JSON: {error}") from error
    if len(text) > MAX_TEXT:
        raise InvalidRequestError(f"json_schema is longer than {MAX_TEXT} bytes")
    value = json.loads(text)
    _check_size(value, 0)
    _check_schema(value, "#")
    return text


def schema_grammar(text: str) -> str:
    """The GBNF of `schema_text`. Raises InvalidRequestError, with llama.cpp's reason, for a schema that it refuses."""
    grammar = lib.pymtp_schema_to_grammar(text.encode())
    if grammar == ffi.NULL:
        raise InvalidRequestError(f"json_schema: {last_error()}")
    return str(ffi.string(grammar).decode("utf-8"))


def _check_size(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"json_schema is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str) and len(value) > MAX_LENGTH:
        raise InvalidRequestError(f"json_schema has a string longer than {MAX_LENGTH} characters: {value[:40]}…")
    if isinstance(value, dict):
        for name in value:
            _check_size(name, depth + 1)
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_size(item, depth + 1)


def _check_schema(schema: object, path: str) -> None:
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"json_schema: {path} must be an object, not {schema!r:.40}")
    keywords = schema.keys() - _SILENT
    alone = next((keyword for keyword in _ALONE if keyword in schema), None)
    if alone:
        heeded = {alone} if alone in ("$ref", "oneOf", "anyOf") else {alone, "type"}
    elif "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        heeded = {"type"}.union(*(_HEEDED.get(name, set()) for name in types if isinstance(name, str)))
    else:
        heeded = next((known for known in _HEEDED.values() if known & keywords), set())
        if heeded is _HEEDED["integer"]:  # without the type, any number would do
            heeded = set()
    heeded = heeded - {other for first, other in _BOUNDS if first in keywords}
    for keyword in sorted(keywords - heeded):
        beside = f" beside {alone!r}" if alone else ""
        raise InvalidRequestError(f"json_schema: {path} has the keyword {keyword!r}, which is not supported{beside}")
    properties = schema.get("properties")
    missing = set(_listed(schema, "required")) - (properties.keys() if isinstance(properties, dict) else set())
    if missing:
        raise InvalidRequestError(f"json_schema: {path} requires {sorted(missing)}, which 'properties' does not have")
    for below, part in _parts(schema):
        _check_schema(part, f"{path}/{below}")


def _listed(schema: dict[str, Any], keyword: str) -> list[str]:
    names = schema.get(keyword, [])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """The schemas within, with their paths; what llama.cpp refuses is left to it."""
    for keyword in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(keyword), dict):
            yield from ((f"{keyword}/{name}", part) for name, part in schema[keyword].items())
    for keyword in ("oneOf", "anyOf", "prefixItems", "items"):
        if isinstance(schema.get(keyword), list):
            yield from ((f"{keyword}/{i}", part) for i, part in enumerate(schema[keyword]))
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield keyword, schema[keyword]
