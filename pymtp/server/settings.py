"""The settings of a server: one frozen object, which checks its values when it is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Literal, NamedTuple, get_args

from pymtp.chat.sampling_defaults import check_sampling_defaults
from pymtp.errors import InvalidRequestError
from pymtp.sampling import THINKING_END_RULE, is_thinking_end
from pymtp.server.metrics.logs import LogFormat, LogLevel
from pymtp.validation import is_path, is_real, is_whole, read_bool, read_int, shown

ANY_HOST = "*"
LOCAL_ORIGINS = "localhost"  # stands for the origins of all web pages of this machine, on any port
ServerPooling = Literal["last", "mean", "none"]
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


class ImageHost(NamedTuple):
    """A host from which images are fetched. port: None for the usual ports of http and https."""

    host: str
    port: int | None


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server.

    Where the type is a tuple of strings, a list or a single string may be given.

    host: the host to listen on, or several with commas between them.
    api_keys: the accepted API keys; if empty, requests need no key.
    cors_origins: the origins of web pages whose requests browsers should allow; "*" for all origins, "localhost" for
        those of this machine, on any port.
    allowed_hosts: host names that Host headers may have besides IP addresses, localhost and `host`; "*" for any name.
    served_names: the names by which requests may ask for the model; responses have the first name. If empty, responses
        have the name of the model's file, and requests may use any name.
    max_queue: the number of completions that may wait for a slot, in addition to those that run; further requests are
        refused. Of a request with many prompts, only the completions that could run at once count. Clients have equal
        shares of the places: one within its share is accepted even if others use more than theirs.
    max_body_bytes: the maximum size of a request's body. Its images are base64, which takes four thirds of their bytes.
    max_bodies_bytes: the maximum size of the bodies of all requests together; None for twice max_body_bytes.
    allow_image_urls: the hosts from which images of http and https URLs are fetched, each with :PORT for another port
        than the usual one; "*" for all hosts with a public address. If empty, no image is fetched.
    media_path: the folder whose files may be images of file: URLs; None for no such images.
    request_timeout: the maximum number of seconds from the arrival of a request to its end; None for no limit.
    grace: the number of seconds after which a shutdown aborts the running requests.
    chunk_interval: the approximate number of seconds between two chunks of a stream; 0 sends each piece as a chunk.
    reasoning_budget: the maximum number of thinking tokens of a chat; None for no limit.
    reasoning_budget_message: the text to insert before the thinking is closed because its budget is used up.
    effort_budgets: maps a reasoning effort to its thinking budget, for chats that have no budget of their own.
    page: whether to serve the web pages.
    metrics: whether to answer /metrics. slots: whether to answer /slots.
    pooling: the default pooling of embeddings: last, mean, or none for the vectors of all tokens.
    sampling: default sampling parameters by their names in SamplingParams; they override the values of the model file.
    log_prompts: whether to log the prompts of requests.
    replica: the name of this server, in letters and digits, if a load balancer distributes requests to several servers.
        The ids of stored responses contain the name, so that later requests can be sent to the same server.

    Raises InvalidRequestError for values of a wrong type, out of range, or that no request could match. Messages do not
    show API keys.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    served_names: tuple[str, ...] = ()
    max_queue: int = 256
    max_body_bytes: int = 32 * 2**20
    max_bodies_bytes: int | None = None
    allow_image_urls: tuple[str, ...] = ()
    media_path: str | None = None
    request_timeout: float | None = None
    grace: float = 30.0
    chunk_interval: float = 0.02
    reasoning_budget: int | None = None
    reasoning_budget_message: str = ""
    effort_budgets: Mapping[str, int] = field(default_factory=dict)
    page: bool = True
    metrics: bool = True
    slots: bool = True
    pooling: ServerPooling = "last"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    log_prompts: bool = False
    replica: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts to listen on."""
        return tuple(host.strip() for host in self.host.split(","))

    def __post_init__(self) -> None:
        for name in ("api_keys", "served_names", "cors_origins", "allowed_hosts", "allow_image_urls"):
            object.__setattr__(self, name, _read_strings(name, getattr(self, name)))
        for name in ("api_keys", "served_names"):
            check_names(name, getattr(self, name))
        for origin in self.cors_origins:
            if origin not in ("*", LOCAL_ORIGINS) and not _ORIGIN.fullmatch(origin):  # no Origin header could match it
                raise InvalidRequestError(
                    f"cors_origins {origin!r} must be scheme://host or scheme://host:port, without a path, or * or "
                    f"{LOCAL_ORIGINS}",
                    "cors_origins",
                )
        for host in self.allowed_hosts:
            if host != ANY_HOST and not _HOST_NAME.fullmatch(host):  # no Host header could match it
                raise InvalidRequestError(
                    f"allowed_hosts {host!r} must be a host name without scheme and port, or *", "allowed_hosts"
                )
        for host in self.allow_image_urls:
            read_image_host(host)
        if self.media_path is not None and not is_path(self.media_path):
            raise InvalidRequestError(f"media_path={shown(self.media_path)} must be the path of a folder", "media_path")
        read_int("max_queue", self.max_queue, 0)
        read_int("max_body_bytes", self.max_body_bytes, 1, 2**63 - 1)
        if self.max_bodies_bytes is not None:
            read_int("max_bodies_bytes", self.max_bodies_bytes, self.max_body_bytes, 2**63 - 1)
        for name in ("grace", "chunk_interval"):
            if not is_real(seconds := getattr(self, name)) or seconds < 0:
                raise InvalidRequestError(f"{name}={shown(seconds)} must be a number of seconds, 0 or more", name)
        limit = self.request_timeout
        if limit is not None and (not is_real(limit) or limit <= 0):
            raise InvalidRequestError(
                f"request_timeout={shown(limit)} must be a number of seconds above 0, or None", "request_timeout"
            )
        check_sampling_defaults("sampling", self.sampling)
        if self.reasoning_budget is not None:
            read_int("reasoning_budget", self.reasoning_budget, 0)
        if not is_thinking_end(message := self.reasoning_budget_message):
            raise InvalidRequestError(
                f"reasoning_budget_message={shown(message)} must be {THINKING_END_RULE}", "reasoning_budget_message"
            )
        efforts = self.effort_budgets
        if not isinstance(efforts, Mapping) or not all(is_whole(budget, 0, 2**31 - 1) for budget in efforts.values()):
            raise InvalidRequestError(
                f"effort_budgets={shown(efforts)} must be a mapping from efforts to numbers of tokens", "effort_budgets"
            )
        enums = {"log_format": LogFormat, "log_level": LogLevel, "pooling": ServerPooling}
        for name, words in ((name, get_args(kind)) for name, kind in enums.items()):
            if not isinstance(word := getattr(self, name), str) or word not in words:
                raise InvalidRequestError(f"{name}={shown(word)} must be one of {', '.join(words)}", name)
        for name in ("page", "metrics", "slots", "log_prompts"):
            read_bool(name, getattr(self, name))


def read_image_host(text: str) -> ImageHost:
    """Read an entry of allow_image_urls. Raises InvalidRequestError if it is neither HOST, HOST:PORT nor *."""
    host, separator, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    host = host.removeprefix("[").removesuffix("]").lower()
    has_port = port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 2**16
    if (separator and (not has_port or host == ANY_HOST)) or not (host == ANY_HOST or _is_host(host)):
        raise InvalidRequestError(
            f"allow_image_urls {shown(text)} must be a host name or an address, with :PORT for another port than the "
            "usual one, without scheme and path; or *",
            "allow_image_urls",
        )
    return ImageHost(host, int(port) if separator else None)


def _is_host(text: str) -> bool:
    """Return whether a text is a host name, in ASCII, or an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True


def _read_strings(name: str, strings: object) -> tuple[str, ...]:
    """Return strings as a tuple. Raises InvalidRequestError for other values, without them, as they may be API keys."""
    if isinstance(strings, str):
        return (strings,)
    if not isinstance(strings, (list, tuple)):
        raise InvalidRequestError(f"{name} must be a string or a list of strings", name)
    if not all(isinstance(string, str) for string in strings):
        raise InvalidRequestError(f"{name} must be a list of strings; leave it out to give none", name)
    return tuple(strings)


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
