"""Parsers for the values that models write: JSON, and Python literals."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<word>[A-Za-z_]+)|(?P<comma>,\s*(?=[\]})]))|(?P<bracket>[()])""",
    re.DOTALL,
)
_STRING_CHARACTER = re.compile(r"""\\(.)|"|[\x00-\x1f]""", re.DOTALL)


class NotJsonError(ValueError):
    """The error for a string that is not JSON."""


def parse_json(text: str, *, strict: bool = True) -> Any:
    """Parse JSON.

    strict: whether line breaks within JSON strings are refused.

    Raises NotJsonError for text that is not JSON, and for a number that is too large for a float.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float, strict=strict)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text} is too large")
    return value


def parse_python_literal(text: str) -> Any:
    """Parse a Python literal: JSON, but with True and None, single-quoted strings, tuples or trailing commas.

    Raises NotJsonError for anything else.
    """
    return parse_json(_PYTHON_TOKEN.sub(_token_as_json, text))


def _token_as_json(token: re.Match[str]) -> str:
    match token.lastgroup:
        case "word":
            return _PYTHON_WORDS.get(token[0], token[0])
        case "comma":
            return ""
        case "bracket":
            return "[" if token[0] == "(" else "]"
    return '"' + _STRING_CHARACTER.sub(_character_as_json, token[0][1:-1]) + '"'


def _character_as_json(match: re.Match[str]) -> str:
    if match[1] == "'":
        return "'"
    return match[0] if match[1] else json.dumps(match[0])[1:-1]
