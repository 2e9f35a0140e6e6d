"""Checks of argument values, and their form in messages."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, SupportsInt, TypeVar

import numpy as np

from pymtp.errors import InvalidRequestError

Options = TypeVar("Options")
MIN_LIKENESS = 0.7  # between two names, one of which may be a slip: at 0.6, "do_sample" would be like "samplers"


def is_text(value: object, longest: int) -> bool:
    """Return whether `value` is a string of at most `longest` characters, without NUL and without lone surrogates."""
    if not isinstance(value, str) or "\0" in value or len(value) > longest:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_whole(value: object, low: float, high: float = math.inf) -> bool:
    """Return whether `value` is an integer from low to high, of Python or NumPy. A bool does not count."""
    return isinstance(value, Integral) and not isinstance(value, bool) and low <= int(value) <= high


def is_real(value: object) -> bool:
    """Return whether `value` is a finite number within the range of a float. A bool does not count as a number."""
    if not isinstance(value, (Integral, float, np.floating)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def read_int(name: str, value: SupportsInt, low: int, high: int = 2**31 - 1) -> int:
    """Return the value as an int. Raises InvalidRequestError unless it is a whole number from low to high."""
    if not is_whole(value, low, high):
        raise InvalidRequestError(f"{name}={shown(value)} must be a whole number from {low} to {high}", name)
    return int(value)


def read_bool(name: str, value: object) -> bool:
    """Return the value as a bool. Raises InvalidRequestError unless it is True or False, of Python or NumPy."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidRequestError(f"{name}={shown(value)} must be True or False", name)
    return bool(value)


def refuse_unknown(
    caller: str,
    keywords: Iterable[str],
    known: Collection[str],
    names_elsewhere: Mapping[str, str] = MappingProxyType({}),
    *,
    also: Collection[str] = (),
) -> None:
    """Raise TypeError, as Python does, for a keyword that is not in `known`, and name the nearest one that is.

    names_elsewhere: names in other libraries, with the known name for the same, or words on what to do instead.
    also: further names that the call takes.
    """
    if unknown := sorted(set(keywords) - set(known)):
        name = unknown[0]
        raise TypeError(
            f"{caller} got an unexpected keyword argument {name!r}{_hint(name, {*known, *also}, names_elsewhere)}"
        )


def _hint(name: str, known: Collection[str], names_elsewhere: Mapping[str, str]) -> str:
    """Return the words of a message about what to use in place of an unknown keyword."""
    meant = names_elsewhere.get(name, "")
    if " " in meant:
        return f": {meant}"
    near = [meant] if meant in known else get_close_matches(name, sorted(known), 1, MIN_LIKENESS)
    return f". Did you mean {near[0]!r}?" if near else ""


def names_keywords(names_elsewhere: Mapping[str, str]) -> Callable[[type[Options]], type[Options]]:
    """Decorate a dataclass whose constructor then names the nearest field for an unknown keyword; see `refuse_unknown`.

    names_elsewhere: see `refuse_unknown`.
    """

    def decorate(kind: type[Options]) -> type[Options]:
        init, known = kind.__init__, {field.name for field in fields(kind)}  # type: ignore[arg-type]

        @wraps(init)
        def construct(self: Options, *values: Any, **keywords: Any) -> None:
            if not keywords.keys() <= known:
                refuse_unknown(f"{kind.__name__}()", keywords, known, names_elsewhere)
            init(self, *values, **keywords)

        kind.__init__ = construct  # type: ignore[method-assign, assignment]
        return kind

    return decorate


def given_options(
    caller: str,
    kind: type[Options],
    options: Options | None,
    keywords: Mapping[str, Any],
    names_elsewhere: Mapping[str, str],
) -> Options:
    """Return the options that a call was given as an object of the dataclass `kind`, or else as keywords.

    caller: the called function, for messages.
    names_elsewhere: see `refuse_unknown`.

    Raises TypeError for an unknown keyword and for keywords beside an object, and the errors of `kind`.
    """
    known = {field.name for field in fields(kind) if field.kw_only}  # type: ignore[arg-type]
    refuse_unknown(caller, keywords, known, names_elsewhere)
    if options is None:
        return kind(**keywords)
    if keywords:
        raise TypeError(f"{caller} got options and the keyword argument {min(keywords)!r}: give one of them")
    return options


def is_path(value: object) -> bool:
    """Return whether `value` is a valid path for C and the file system: not empty, without NUL."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def read_path(what: str, value: object) -> Path:
    """Return the value as a Path. Raises InvalidRequestError if it is no path; `what` names it in the message."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not is_path(path):
        raise InvalidRequestError(f"{what} must be a path, not {shown(value)}")
    return Path(path)  # type: ignore[arg-type] # is_path has checked it


def shown(value: object) -> str:
    """Return the value's repr for a message, at most 200 characters."""
    try:
        return f"{value!r:.200}"
    except Exception:  # __repr__ may raise anything; Python writes no integer of more than 4,300 digits
        return f"({type(value).__name__})"


def absolute_path(path: str) -> str:
    """Return the path made absolute, so that it stays valid when the process changes its folder.

    ".." is not resolved: the folder before it may be a symbolic link. If the current folder was deleted, the path is
    returned unchanged.
    """
    if os.path.isabs(path):
        return path
    try:
        return os.path.join(os.getcwd(), path)
    except FileNotFoundError:
        return path


def replace_surrogates(text: str) -> str:
    """Replace lone UTF-16 surrogates by U+FFFD, and join surrogate pairs to their character.

    JSON may contain lone surrogates: clients that cut a string within a surrogate pair send them.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def replace_all_surrogates(value: Any) -> Any:
    """Apply `replace_surrogates` to all strings in a JSON value.

    A value without surrogates is returned unchanged, in a tenth of the time. Raises RecursionError for a value that is
    nested too deep.
    """
    if not isinstance(value, str):
        try:
            json.dumps(value, ensure_ascii=False).encode()
            return value
        except (TypeError, ValueError):  # it has a surrogate, or a value that JSON does not have
            pass
    return _replace_all_surrogates(value)


def _replace_all_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, Mapping):
        return {_replace_all_surrogates(name): _replace_all_surrogates(item) for name, item in value.items()}
    if isinstance(value, list):
        return [item if isinstance(item, (int, float)) else _replace_all_surrogates(item) for item in value]
    return value


HUB_PREFIX = "hf:"


def is_hub_name(text: str) -> bool:
    """Return whether a string is the name of a model on the Hugging Face hub ("hf:…"), not the path of a file."""
    return text.startswith(HUB_PREFIX)
