"""Readers of the list values of ModelOptions.

They return tuples, so that options with the same meaning compare equal, and a caller's later changes of a list have no
effect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NoReturn

from pymtp.errors import InvalidRequestError
from pymtp.native import lib
from pymtp.validation import is_path, is_real, shown

MAX_PATTERN = 1000  # characters; longer ones could overflow the stack, as std::regex calls itself for nested groups
MAX_NUMBER = 1e12  # the largest share or scale, far within the range of a C float
MIN_SHARE = 1e-12


def read_overrides(value: object) -> tuple[tuple[str, str], ...]:
    """Read override_tensor into pairs of expression and buffer type. Raises InvalidRequestError for other values."""

    def refuse() -> NoReturn:
        raise InvalidRequestError(
            f"override_tensor={shown(value)} must be regular expressions, of up to {MAX_PATTERN} characters, with "
            r'buffer types, as in r"blk\.[0-9]\.ffn_.*=CPU". Commas separate them: give an expression that contains a '
            "comma in a dict, or write it without one (xx? for x{1,2})",
            "override_tensor",
        )

    if isinstance(value, str):
        pairs: list[Any] = [part.rpartition("=")[::2] for part in value.split(",")] if value else []
    else:
        pairs = _listed(value, refuse)
    found = []
    for pair in pairs:
        pattern, buffer = pair if isinstance(pair, (tuple, list)) and len(pair) == 2 else refuse()
        if not is_path(pattern) or not is_path(buffer) or len(pattern) > MAX_PATTERN:
            refuse()
        found.append((pattern, buffer))
    return tuple(found)


def read_split(value: object) -> tuple[float, ...]:
    """Read tensor_split into the shares of the GPUs. Raises InvalidRequestError for other values."""
    max_devices = lib.llama_max_devices()

    def refuse() -> NoReturn:
        raise InvalidRequestError(
            f"tensor_split={shown(value)} must be up to {max_devices} shares of {MIN_SHARE:.0e} to {MAX_NUMBER:.0e}, "
            "or 0, and not all 0, as in [3, 1]",
            "tensor_split",
        )

    shares = refuse() if isinstance(value, (Mapping, Set)) else _listed(value, refuse)
    if len(shares) > max_devices or not all(
        is_real(share) and (share == 0 or MIN_SHARE <= float(share) <= MAX_NUMBER) for share in shares
    ):
        refuse()
    found = tuple(float(share) for share in shares)
    return found if not found or any(found) else refuse()


def read_adapters(value: object) -> tuple[tuple[str, float], ...]:
    """Read lora into pairs of adapter file and scale. Raises InvalidRequestError for other values."""

    def refuse() -> NoReturn:
        raise InvalidRequestError(
            f"lora={shown(value)} must be files, each alone or with a scale of up to {MAX_NUMBER:.0e}, as in "
            '[("a.gguf", 0.5)]',
            "lora",
        )

    found = []
    for adapter in [value] if isinstance(value, (str, os.PathLike)) else _listed(value, refuse):
        path, scale = adapter if isinstance(adapter, (tuple, list)) and len(adapter) == 2 else (adapter, 1.0)
        name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else refuse()
        if not is_path(name) or not is_real(scale) or abs(float(scale)) > MAX_NUMBER:
            refuse()
        found.append((name, float(scale)))
    return tuple(found)


def _listed(value: object, refuse: Callable[[], NoReturn]) -> list[Any]:
    """Return the elements of a sequence, or the pairs of a mapping; call `refuse` for other values."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        refuse()
    try:
        return list(value.items() if isinstance(value, Mapping) else value)
    except TypeError:  # an array without dimensions
        refuse()
