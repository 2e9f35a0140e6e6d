"""Checks of the arguments of serve_app, which run before anything starts.

Without them, Ray would raise errors that name its own internals instead of the argument.
"""

from __future__ import annotations

import os
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.hub.names import read_name
from pymtp.validation import is_hub_name, is_path, is_real, is_whole, shown

MAX_REPLICAS = 10_000


def replica_range(replicas: object) -> tuple[int, int]:
    """Return the smallest and the largest number of replicas. Raises InvalidRequestError for invalid numbers."""
    pair = replicas if isinstance(replicas, (tuple, list)) else (replicas, replicas)
    if len(pair) != 2 or not all(is_whole(number, 1, MAX_REPLICAS) for number in pair) or pair[0] > pair[1]:
        raise InvalidRequestError(
            f"replicas={shown(replicas)} must be a whole number from 1 to {MAX_REPLICAS}, or two such numbers: the "
            "smallest and the largest",
            "replicas",
        )
    return int(pair[0]), int(pair[1])


def resource(name: str, value: Any) -> float:
    """Return the number of CPUs or GPUs of a replica. Raises InvalidRequestError for an invalid number.

    GPUs must be a fraction below 1 or a whole number, because Ray can share one GPU but not parts of several.
    """
    if not is_real(value) or value < 0 or (name == "num_gpus" and value > 1 and value != int(value)):
        whole_hint = "; above 1, it must be whole" if name == "num_gpus" else ""
        raise InvalidRequestError(f"{name}={shown(value)} must be a number of 0 or more{whole_hint}", name)
    return float(value) if value != int(value) else int(value)


def path(name: str, value: object) -> str | None:
    """Return a path as a string; for `name` "model", it can be a name of the hub. None stays None.

    Raises InvalidRequestError for any other value.
    """
    if value is None:
        return None
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not is_path(text):
        raise InvalidRequestError(f"{name}={shown(value)} must be a path or a name of the hub, or None", name)
    if name == "model" and is_hub_name(text):
        read_name(text)
    return text
