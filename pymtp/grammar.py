"""JSON schemas as GBNF. A keyword that no grammar can hold a text to is refused: a text is what its schema says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.schema import schema_gbnf
from pymtp.schema_keywords import SchemaError

MAX_DEPTH = 64  # of nested values, which are walked by recursion
MAX_TEXT = 2**20


def schema_text(schema: str | Mapping[str, Any]) -> str:
    """A schema as JSON text. Raises InvalidRequestError for what is none."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequestError(f"json_schema is not JSON: {error}") from error
    if len(text) > MAX_TEXT:
        raise InvalidRequestError(f"json_schema is longer than {MAX_TEXT} bytes")
    _check_depth(json.loads(text), 0)
    return text


def schema_grammar(text: str) -> str:
    """The GBNF of `schema_text`. Raises InvalidRequestError for a schema that no grammar can hold a text to."""
    try:
        return schema_gbnf(json.loads(text))
    except (SchemaError, RecursionError) as error:
        raise InvalidRequestError(f"json_schema: {error}") from error


def _check_depth(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"json_schema is nested more than {MAX_DEPTH} deep")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth + 1)
