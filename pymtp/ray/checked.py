"""Values of a Ray Serve application, looked at before anything starts: Ray's own errors name its internals."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, get_args

from pymtp.errors import InvalidRequestError
from pymtp.hub.names import read_name
from pymtp.sampling import CLOSING_MESSAGE, is_closing_message
from pymtp.sampling_defaults import check_defaults
from pymtp.server.metrics.logs import LogFormat, LogLevel
from pymtp.server.settings import Settings, check_host, check_names, check_origin
from pymtp.validation import in_range, is_hub_name, is_path, is_real, is_whole, shown

MOST_REPLICAS = 10_000
_SEVERAL = ("api_keys", "cors_origins", "allowed_hosts", "served_names")
_CHOICES = {"log_format": get_args(LogFormat), "log_level": get_args(LogLevel), "page": (True, False)}
_CHOICES["log_prompts"] = _CHOICES["page"]


def least_and_most(replicas: object) -> tuple[int, int]:
    """How many replicas. Raises InvalidRequestError."""
    pair = replicas if isinstance(replicas, (tuple, list)) else (replicas, replicas)
    if len(pair) != 2 or not all(is_whole(each, 1, MOST_REPLICAS) for each in pair) or pair[0] > pair[1]:
        raise InvalidRequestError(
            f"replicas={shown(replicas)} must be a whole number from 1 to {MOST_REPLICAS}, or two: the least and the "
            "most",
            "replicas",
        )
    return int(pair[0]), int(pair[1])


def resource(name: str, value: Any) -> float:
    """What a replica has of CPUs or GPUs; Ray shares a GPU only, not several. Raises InvalidRequestError."""
    if not is_real(value) or value < 0 or (name == "num_gpus" and value > 1 and value != int(value)):
        parts = "; above 1, a whole one" if name == "num_gpus" else ""
        raise InvalidRequestError(f"{name}={shown(value)} must be a number of 0 or more{parts}", name)
    return float(value) if value != int(value) else int(value)


def path(name: str, value: object) -> str | None:
    """A file, or a name of the hub. Raises InvalidRequestError."""
    if value is None:
        return None
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(found, str) or not is_path(found):
        raise InvalidRequestError(f"{name}={shown(value)} must be a path or a name of the hub, or None", name)
    if name == "model" and is_hub_name(found):
        read_name(found)
    return found


def texts(own: dict[str, Any]) -> dict[str, Any]:
    """Options of Settings, those of several texts as tuples. Raises InvalidRequestError."""
    found = dict(own)
    for name in own.keys() & set(_SEVERAL):
        several = (own[name],) if isinstance(own[name], str) else own[name]
        if not isinstance(several, (list, tuple)):  # none is shown: they may be keys
            raise InvalidRequestError(f"{name} must be a text or a list of texts", name)
        if not all(isinstance(each, str) for each in several):
            raise InvalidRequestError(f"{name} must be texts, or not given", name)
        check_names(name, several)
        found[name] = tuple(several)
    return found


def check(settings: Settings) -> None:
    """Raises InvalidRequestError for numbers that are none, or out of range, and for words that are not known."""
    for origin in settings.cors_origins:
        check_origin("cors_origins", origin)
    for host in settings.allowed_hosts:
        check_host("allowed_hosts", host)
    in_range("max_queue", settings.max_queue, 0)
    in_range("max_body_bytes", settings.max_body_bytes, 1, 2**63 - 1)
    for name in ("grace", "chunk_interval"):
        if not is_real(seconds := getattr(settings, name)) or seconds < 0:
            raise InvalidRequestError(f"{name}={shown(seconds)} must be seconds, 0 or more", name)
    seconds = settings.request_timeout
    if seconds is not None and (not is_real(seconds) or seconds <= 0):
        raise InvalidRequestError(
            f"request_timeout={shown(seconds)} must be seconds, above 0, or None", "request_timeout"
        )
    check_defaults("sampling", settings.sampling)
    if settings.reasoning_budget is not None:
        in_range("reasoning_budget", settings.reasoning_budget, 0)
    if not is_closing_message(message := settings.reasoning_budget_message):
        raise InvalidRequestError(
            f"reasoning_budget_message={shown(message)} must be {CLOSING_MESSAGE}", "reasoning_budget_message"
        )
    efforts = settings.effort_budgets
    if not isinstance(efforts, Mapping) or not all(is_whole(budget, 0, 2**31 - 1) for budget in efforts.values()):
        raise InvalidRequestError(
            f"effort_budgets={shown(efforts)} must be a mapping of efforts to tokens", "effort_budgets"
        )
    for name, choices in _CHOICES.items():
        value = getattr(settings, name)
        if not isinstance(value, (str, bool)) or value not in choices:
            words = ", ".join(map(repr, choices))
            raise InvalidRequestError(f"{name}={shown(value)} must be one of {words}", name)
