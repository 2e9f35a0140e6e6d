"""Values of parameters as text: JSON, or nearly so, as models write them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_PYTHON = {"True": "true", "False": "false", "None": "null"}
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<word>[A-Za-z_]+)|(?P<comma>,\s*(?=[\]})]))|(?P<bracket>[()])""",
    re.DOTALL,
)
_QUOTED = re.compile(r"""\\(.)|"|[\x00-\x1f]""", re.DOTALL)


class NoValueError(ValueError):
    """A text that is no JSON."""


def json_value(text: str, *, strict: bool = True) -> Any:
    """strict: whether line breaks within strings are refused. Raises NoValueError for what is no JSON, or has a number
    that no float holds."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite, strict=strict)
    except (ValueError, RecursionError) as error:
        raise NoValueError(str(error)) from error
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def python_value(text: str) -> Any:
    """The value of a Python literal: of True, None, strings in single quotes, tuples, a comma too many. Raises
    NoValueError for others."""
    return json_value(_TOKEN.sub(_as_json, text))


def _as_json(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "word":
            return _PYTHON.get(found[0], found[0])
        case "comma":
            return ""
        case "bracket":
            return "[" if found[0] == "(" else "]"
    return '"' + _QUOTED.sub(_quoted, found[0][1:-1]) + '"'


def _quoted(found: re.Match[str]) -> str:
    if found[1] == "'":
        return "'"
    return found[0] if found[1] else json.dumps(found[0])[1:-1]
