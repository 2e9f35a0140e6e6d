"""Values of ModelOptions that are lists, read into tuples: equal options compare as equal, whatever they were written
as, and what a caller changes later changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NoReturn

from pymtp.errors import InvalidRequestError
from pymtp.native import lib
from pymtp.validation import is_path, is_real, shown

MAX_PATTERN = 1000  # characters: std::regex takes a piece of the stack for each level that they nest
MAX_NUMBER = 1e12  # of shares and scales: far from the ends of a C float
LEAST_SHARE = 1e-12


def read_overrides(given: object) -> tuple[tuple[str, str], ...]:
    """Pairs of expression and type of buffer. Raises InvalidRequestError."""

    def refuse() -> NoReturn:
        raise InvalidRequestError(
            f"override_tensor={shown(given)} must be regular expressions, of up to {MAX_PATTERN} characters, with "
            r'types of buffers, as in r"blk\.[0-9]\.ffn_.*=CPU". Commas separate them: an expression with one '
            "goes into a dict, or in other words (x{1,2} is xx?)",
            "override_tensor",
        )

    if isinstance(given, str):
        pairs: list[Any] = [part.rpartition("=")[::2] for part in given.split(",")] if given else []
    else:
        pairs = _listed(given, refuse)
    found = []
    for pair in pairs:
        pattern, buffer = pair if isinstance(pair, (tuple, list)) and len(pair) == 2 else refuse()
        if not is_path(pattern) or not is_path(buffer) or len(pattern) > MAX_PATTERN:
            refuse()
        found.append((pattern, buffer))
    return tuple(found)


def read_split(given: object) -> tuple[float, ...]:
    """Shares of GPUs. Raises InvalidRequestError."""
    most = lib.llama_max_devices()

    def refuse() -> NoReturn:
        raise InvalidRequestError(
            f"tensor_split={shown(given)} must be up to {most} shares of {LEAST_SHARE:.0e} to {MAX_NUMBER:.0e}, or 0, "
            "and not all 0, as in [3, 1]",
            "tensor_split",
        )

    shares = refuse() if isinstance(given, (Mapping, Set)) else _listed(given, refuse)
    if len(shares) > most or not all(
        is_real(share) and (share == 0 or LEAST_SHARE <= float(share) <= MAX_NUMBER) for share in shares
    ):
        refuse()
    found = tuple(float(share) for share in shares)
    return found if not found or any(found) else refuse()


def read_adapters(given: object) -> tuple[tuple[str, float], ...]:
    """Files of adapters and their scales. Raises InvalidRequestError."""

    def refuse() -> NoReturn:
        raise InvalidRequestError(
            f"lora={shown(given)} must be files, each alone or with a scale of up to {MAX_NUMBER:.0e}, as in "
            '[("a.gguf", 0.5)]',
            "lora",
        )

    found = []
    for one in [given] if isinstance(given, (str, os.PathLike)) else _listed(given, refuse):
        path, scale = one if isinstance(one, (tuple, list)) and len(one) == 2 else (one, 1.0)
        name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else refuse()
        if not is_path(name) or not is_real(scale) or abs(float(scale)) > MAX_NUMBER:
            refuse()
        found.append((name, float(scale)))
    return tuple(found)


def _listed(given: object, refuse: Callable[[], NoReturn]) -> list[Any]:
    """Its elements; of a mapping, its pairs."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        refuse()
    try:
        return list(given.items() if isinstance(given, Mapping) else given)
    except TypeError:  # of an array without dimensions
        refuse()
