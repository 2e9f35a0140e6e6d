"""Values that callers give: which are taken, and how the others are shown."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsInt

import numpy as np

from pymtp.errors import InvalidRequestError


def is_whole(value: object, low: float, high: float = math.inf) -> bool:
    """Whether it is a whole number from low to high: of any integer type, NumPy's too. A bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and low <= int(value) <= high


def is_real(value: object) -> bool:
    """Whether it is a finite number that a float holds. A bool is none."""
    if not isinstance(value, (Integral, float, np.floating)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def in_range(name: str, value: SupportsInt, low: int, high: int = 2**31 - 1) -> int:
    """The value. Raises InvalidRequestError for anything else than a whole number from low to high."""
    if not is_whole(value, low, high):
        raise InvalidRequestError(f"{name}={shown(value)} must be a whole number from {low} to {high}", name)
    return int(value)


def flag(name: str, value: object) -> bool:
    """The value. Raises InvalidRequestError for anything else than True and False, Python's or NumPy's."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidRequestError(f"{name}={shown(value)} must be True or False", name)
    return bool(value)


def is_path(value: object) -> bool:
    """Whether it is a text that C and the file system can have: not empty, without NUL."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def read_path(what: str, value: object) -> Path:
    """The path. Raises InvalidRequestError for what is none, naming what it is for."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not is_path(path):
        raise InvalidRequestError(f"{what} must be a path, not {shown(value)}")
    return Path(path)  # type: ignore[arg-type] # as was seen


def shown(value: object) -> str:
    """The value for a message, not too long."""
    try:
        return f"{value!r:.200}"
    except (ValueError, RecursionError):  # Python writes no integer of more than 4,300 digits
        return f"({type(value).__name__})"


def whole(path: str) -> str:
    """The path of the same file from anywhere. ".." stays: a folder before it may be a link to another place. So does a
    path that begins in a folder that is gone."""
    if os.path.isabs(path):
        return path
    try:
        return os.path.join(os.getcwd(), path)
    except FileNotFoundError:
        return path


def whole_text(text: str) -> str:
    """Replace halves of characters of UTF-16 by U+FFFD. Clients that cut a text by its UTF-16 units leave them, and
    JSON may hold them. Two halves that fit become their character."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def whole_texts(value: Any) -> Any:
    """Apply `whole_text` to all texts in a value as JSON has it. A value without halves comes back as it is, in a tenth
    of the time. Raises RecursionError for one that is nested too deep."""
    if not isinstance(value, str):
        try:
            json.dumps(value, ensure_ascii=False).encode()
            return value
        except (TypeError, ValueError):  # half a character, or what JSON has not
            pass
    return _whole_texts(value)


def _whole_texts(value: Any) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, Mapping):
        return {_whole_texts(name): _whole_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [each if isinstance(each, (int, float)) else _whole_texts(each) for each in value]
    return value


HUB_PREFIX = "hf:"


def is_hub_name(text: str) -> bool:
    """Tell whether a text names a model of the Hugging Face hub, and no file."""
    return text.startswith(HUB_PREFIX)
