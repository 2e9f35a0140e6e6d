"""Values that callers give: which are taken, and how the others are shown."""

from __future__ import annotations

import math
import os
from numbers import Integral
from pathlib import Path
from typing import SupportsInt

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
