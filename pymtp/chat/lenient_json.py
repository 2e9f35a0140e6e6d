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
    """A text that is not JSON."""


def parse_json(text: str, *, strict: bool = True) -> Any:
    """Parse JSON. strict: refuse line breaks within strings.

    Raises NotJsonError for a text that is not JSON, and for a number that no float holds.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float, strict=strict)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def parse_python_literal(text: str) -> Any:
    """Parse a Python literal: True, None, single-quoted strings, tuples, a trailing comma.

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
