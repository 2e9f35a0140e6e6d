"""Checks of the arguments of serve_app, which run before anything starts.

Without them, Ray would raise errors that name its own internals instead of the argument.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, get_args

from pymtp.errors import InvalidRequestError
from pymtp.hub.names import read_name
from pymtp.sampling import THINKING_END_RULE, is_thinking_end
from pymtp.sampling_defaults import check_sampling_defaults
from pymtp.server.metrics.logs import LogFormat, LogLevel
from pymtp.server.settings import ServerSettings, check_host, check_names, check_origin
from pymtp.validation import is_hub_name, is_path, is_real, is_whole, read_int, shown

MAX_REPLICAS = 10_000
_STRING_LISTS = ("api_keys", "cors_origins", "allowed_hosts", "served_names")
_CHOICES = {"log_format": get_args(LogFormat), "log_level": get_args(LogLevel), "page": (True, False)}
_CHOICES["log_prompts"] = _CHOICES["page"]


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


def string_tuples(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, with those that are lists of strings converted to tuples of strings.

    Raises InvalidRequestError for values of another type, and for invalid strings.
    """
    converted = dict(options)
    for name in options.keys() & set(_STRING_LISTS):
        strings = (options[name],) if isinstance(options[name], str) else options[name]
        # the messages do not show the value, because it may be an API key
        if not isinstance(strings, (list, tuple)):
            raise InvalidRequestError(f"{name} must be a string or a list of strings", name)
        if not all(isinstance(string, str) for string in strings):
            raise InvalidRequestError(f"{name} must be a list of strings; leave it out to give none", name)
        check_names(name, strings)
        converted[name] = tuple(strings)
    return converted


def check_settings(settings: ServerSettings) -> None:
    """Raise InvalidRequestError for a setting that has a wrong type, is out of range, or is not a known word."""
    for origin in settings.cors_origins:
        check_origin("cors_origins", origin)
    for host in settings.allowed_hosts:
        check_host("allowed_hosts", host)
    read_int("max_queue", settings.max_queue, 0)
    read_int("max_body_bytes", settings.max_body_bytes, 1, 2**63 - 1)
    for name in ("grace", "chunk_interval"):
        if not is_real(seconds := getattr(settings, name)) or seconds < 0:
            raise InvalidRequestError(f"{name}={shown(seconds)} must be a number of seconds, 0 or more", name)
    seconds = settings.request_timeout
    if seconds is not None and (not is_real(seconds) or seconds <= 0):
        raise InvalidRequestError(
            f"request_timeout={shown(seconds)} must be a number of seconds above 0, or None", "request_timeout"
        )
    check_sampling_defaults("sampling", settings.sampling)
    if settings.reasoning_budget is not None:
        read_int("reasoning_budget", settings.reasoning_budget, 0)
    if not is_thinking_end(message := settings.reasoning_budget_message):
        raise InvalidRequestError(
            f"reasoning_budget_message={shown(message)} must be {THINKING_END_RULE}", "reasoning_budget_message"
        )
    efforts = settings.effort_budgets
    if not isinstance(efforts, Mapping) or not all(is_whole(budget, 0, 2**31 - 1) for budget in efforts.values()):
        raise InvalidRequestError(
            f"effort_budgets={shown(efforts)} must be a mapping from efforts to numbers of tokens", "effort_budgets"
        )
    for name, choices in _CHOICES.items():
        value = getattr(settings, name)
        if not isinstance(value, (str, bool)) or value not in choices:
            words = ", ".join(map(repr, choices))
            raise InvalidRequestError(f"{name}={shown(value)} must be one of {words}", name)
