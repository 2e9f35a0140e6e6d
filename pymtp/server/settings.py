"""The settings of a server, and the checks of their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.server.metrics.logs import LogFormat, LogLevel

ANY_HOST = "*"
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


def check_origin(option: str, origin: str) -> None:
    """Raise InvalidRequestError for a text that is no origin, which would never match."""
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise InvalidRequestError(
            f"{option} {origin!r} must be scheme://host or scheme://host:port, without a path, or *", option
        )


def check_host(option: str, name: str) -> None:
    """Raise InvalidRequestError for a text that is no host name, which would never match."""
    if name != ANY_HOST and not _HOST_NAME.fullmatch(name):
        raise InvalidRequestError(f"{option} {name!r} must be a name, without scheme and port, or *", option)


def check_names(option: str, names: Iterable[str]) -> None:
    """Raise InvalidRequestError for names and keys that no request can have.

    These are empty ones, ones with space around them, and bytes of the command line that are not UTF-8. The message
    does not show the text: it may be a key.
    """
    for name in names:
        if name != name.strip() or not name:
            raise InvalidRequestError(f"{option} must be text without space around it, not empty", option)
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{option} must be UTF-8", option) from error


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server.

    api_keys: a request needs one of them; without any, no key is needed.
    cors_origins: origins of web pages that browsers allow to send requests; "*" for all.
    allowed_hosts: allowed Host headers, in addition to IP addresses, localhost and `host`; "*" for any.
    served_names: names of the model, the first one in responses; without any, the name of the model's file.
    max_queue: completions that may wait for a slot; further requests are refused. A request that comes when nothing
        runs is accepted with any number of completions.
    max_body_bytes: limit of a request's body.
    request_timeout: seconds from the arrival of a request to its end, with the time in the queue; None for no limit.
    grace: seconds that running requests may take at shutdown.
    chunk_interval: seconds between two chunks of a stream, about: pieces in between are joined. 0 joins none.
    reasoning_budget: thinking tokens of a chat at most; None for no limit.
    reasoning_budget_message: text that is inserted before the thinking is closed at its budget.
    effort_budgets: thinking budgets by reasoning effort, for chats without a budget of their own.
    page: serve the web pages.
    sampling: default sampling parameters by the names of SamplingParams; they precede the values of the model's file.
    log_prompts: log the prompts of requests.
    replica: the name of this server among several behind one address: letters and digits. The ids of stored responses
        have it, and route later requests for them to this server.
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
