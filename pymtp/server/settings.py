"""The settings of a server, and checks of their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.server.metrics.logs import LogFormat, LogLevel
from pymtp.validation import is_whole, shown

ANY_HOST = "*"
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


def check_origin(option: str, origin: str) -> None:
    """Raise InvalidRequestError for a string that is not an origin, because no Origin header could match it."""
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise InvalidRequestError(
            f"{option} {origin!r} must be scheme://host or scheme://host:port, without a path, or *", option
        )


def check_host(option: str, name: str) -> None:
    """Raise InvalidRequestError for a string that is not a host name, because no Host header could match it."""
    if name != ANY_HOST and not _HOST_NAME.fullmatch(name):
        raise InvalidRequestError(f"{option} {name!r} must be a host name without scheme and port, or *", option)


def check_names(option: str, names: Iterable[str]) -> None:
    """Raise InvalidRequestError for a model name or API key that no request could have.

    Such names and keys are empty, have space around them, or are not UTF-8. The message does not show the value,
    because it may be a secret key.
    """
    for name in names:
        if name != name.strip() or not name:
            raise InvalidRequestError(f"{option} must not be empty, and must have no space around it", option)
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{option} must be UTF-8", option) from error


def parse_effort_budgets(option: str, text: str) -> dict[str, int]:
    """Parse a list such as `low=1024,high=8192`, and return the thinking budget of each reasoning effort.

    Raises InvalidRequestError if the list has another form.
    """
    budgets: dict[str, int] = {}
    for pair in text.split(",") if text else ():
        effort, _, budget = (part.strip() for part in pair.partition("="))
        if not effort or not budget.isdecimal() or effort in budgets or not is_whole(int(budget), 0, 2**31 - 1):
            raise InvalidRequestError(
                f"{option} {shown(text)} must list reasoning efforts with budgets in tokens, such as low=1024,high=8192"
            )
        budgets[effort] = int(budget)
    return budgets


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server.

    api_keys: the accepted API keys; if empty, requests need no key.
    cors_origins: the origins of web pages whose requests browsers should allow; "*" for all origins.
    allowed_hosts: host names that Host headers may have besides IP addresses, localhost and `host`; "*" for any name.
    served_names: the names by which requests may ask for the model; responses have the first name. If empty, responses
        have the name of the model's file, and requests may use any name.
    max_queue: the number of completions that may wait for a slot; further requests are refused. A request that arrives
        when no other request runs is accepted with any number of completions.
    max_body_bytes: the maximum size of a request's body.
    request_timeout: the maximum number of seconds from the arrival of a request to its end; None for no limit.
    grace: the number of seconds after which a shutdown aborts the running requests.
    chunk_interval: the approximate number of seconds between two chunks of a stream; 0 sends each piece as a chunk.
    reasoning_budget: the maximum number of thinking tokens of a chat; None for no limit.
    reasoning_budget_message: the text to insert before the thinking is closed because its budget is used up.
    effort_budgets: maps a reasoning effort to its thinking budget, for chats that have no budget of their own.
    page: whether to serve the web pages.
    sampling: default sampling parameters by their names in SamplingParams; they override the values of the model file.
    log_prompts: whether to log the prompts of requests.
    replica: the name of this server, in letters and digits, if a load balancer distributes requests to several servers.
        The ids of stored responses contain the name, so that later requests can be sent to the same server.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    served_names: tuple[str, ...] = ()
    max_queue: int = 256
    max_body_bytes: int = 16 * 2**20
    request_timeout: float | None = None
    grace: float = 30.0
    chunk_interval: float = 0.02
    reasoning_budget: int | None = None
    reasoning_budget_message: str = ""
    effort_budgets: Mapping[str, int] = field(default_factory=dict)
    page: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    log_prompts: bool = False
    replica: str = ""
