"""What a server is started with."""

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
    """Raises InvalidRequestError for what no browser calls an origin: it would never match."""
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise InvalidRequestError(
            f"{option} {origin!r} must be scheme://host or scheme://host:port, without a path, or *", option
        )


def check_host(option: str, name: str) -> None:
    """Raises InvalidRequestError for what is no host's name: it would never match."""
    if name != ANY_HOST and not _HOST_NAME.fullmatch(name):
        raise InvalidRequestError(f"{option} {name!r} must be a name, without scheme and port, or *", option)


def check_names(option: str, names: Iterable[str]) -> None:
    """Raises InvalidRequestError for names and keys that no request has: empty ones, with space around, and bytes of a
    command line that are not UTF-8, as Python keeps them. None is shown: it may be a key."""
    for name in names:
        if name != name.strip() or not name:
            raise InvalidRequestError(f"{option} must be text without space around it, not empty", option)
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{option} must be UTF-8", option) from error


@dataclass(frozen=True)
class Settings:
    """
    api_keys: one of them has to come with each request; none for anybody.
    cors_origins: pages of other origins that a browser lets ask, "*" for all.
    allowed_hosts: names that requests may be for, beside addresses, localhost and `host`; "*" for any.
    served_names: of the model, the first in answers; none for the file's.
    max_queue: texts that may wait for a place; more are turned away. A request that comes when nothing runs is taken,
        however many texts it asks for.
    max_body_bytes: of a request.
    request_timeout: seconds that a request may take, the waiting included; None for any number.
    grace: seconds that running requests have when the server ends.
    chunk_interval: seconds between two chunks of a stream, about: what comes faster is joined. 0: nothing is.
    reasoning_budget: tokens that a chat may think at most; None for any number.
    reasoning_budget_message: is written where a budget is out, before the thinking is closed.
    effort_budgets: of chats without a budget of their own, by the effort that they ask for.
    page: whether the pages are served.
    sampling: what a request leaves open, by the names of SamplingParams: before what the model's file says.
    log_prompts: whether what clients ask is in the log.
    replica: of several servers behind one address, the name of this one: letters and digits. It is in the names of
        stored responses, by which requests for them come here.
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
