"""The request log: one line for each HTTP request, with the tokens of its completions."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymtp.chat import Chat
from pymtp.server.image_parts import image_part, image_url
from pymtp.server.metrics.logs import log

CLIENT_CLOSED_REQUEST = 499  # nginx's status of requests whose client disconnects before the response
# Routes that are logged at level debug, because monitoring requests them every few seconds.
DEBUG_ROUTES = ("/health", "/metrics", "/figures")
# Methods that are counted by name. Clients may send any other word, which is counted as "other".
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
LOGGED_BY_WORKER = "logged_by_worker"  # key of scope["state"]: True if a front has passed the request to a worker
MAX_PATH_CHARACTERS = 200  # the most characters of an unknown path in a log line
MAX_URL_CHARACTERS = 200  # the most characters of an image's URL


class HttpRequestCounter(Protocol):
    """A function that counts an HTTP request by method, route and status."""

    def __call__(self, method: str, route: str, status: int) -> None: ...


@dataclass
class LogEntry:
    """The fields of a request's log line. Token counts are sums over all completions of the request."""

    prompt: Any = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_text: int = 0
    accepted_by_text: int = 0
    time_to_first_token: float | None = None
    finish_reasons: list[str] = field(default_factory=list)

    def generation_fields(self) -> dict[str, Any]:
        """Return the fields about the completions; {} if the request did not generate anything."""
        if self.prompt_tokens is None:
            return {}
        first = self.time_to_first_token
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "drafted_by_text": self.drafted_by_text,
            "accepted_by_text": self.accepted_by_text,
            "time_to_first_token": None if first is None else round(first, 6),
            "finish_reason": ",".join(self.finish_reasons) or None,
        }


_entry: ContextVar[LogEntry | None] = ContextVar("entry", default=None)


def current_log_entry() -> LogEntry | None:
    """Return the log entry of the HTTP request that the current task handles; None outside requests."""
    return _entry.get()


class RequestLogMiddleware:
    """The middleware that logs and counts each request. RequestIdMiddleware must have set the request id before."""

    def __init__(self, app: ASGIApp, count: HttpRequestCounter, *, prompts: bool = False) -> None:
        """count: counts each request.

        prompts: whether the log lines include the prompts.
        """
        self._app, self._count, self._prompts = app, count, prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, entry = time.perf_counter(), CLIENT_CLOSED_REQUEST, LogEntry()

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = _entry.set(entry)
        try:
            await self._app(scope, receive, send_and_note_status)
        except Exception:
            status = 500
            raise  # the exception handler that answers the request logs the traceback
        finally:
            _entry.reset(token)
            self._write(scope, entry, status, time.perf_counter() - start)

    def _write(self, scope: Scope, entry: LogEntry, status: int, seconds: float) -> None:
        method, route = scope["method"], _route(scope)
        self._count(method if method in METHODS else "other", route or "other", status)
        if scope["state"].get(LOGGED_BY_WORKER):
            return
        shown_route = route or scope["path"][:MAX_PATH_CHARACTERS]
        fields = {
            "method": method,
            "route": shown_route,
            "status": status,
            "request_id": scope["state"]["request_id"],
            "client": scope["client"][0] if scope.get("client") else None,
            "seconds": round(seconds, 6),
            **entry.generation_fields(),
        }
        if self._prompts and entry.prompt is not None:
            is_chat = isinstance(entry.prompt, Chat)
            fields["prompt"] = [_shortened(one) for one in entry.prompt.messages] if is_chat else entry.prompt
        log.log(logging.DEBUG if route in DEBUG_ROUTES else logging.INFO, "request", extra={"fields": fields})


def _shortened(message: Any) -> Any:
    """Return a message in which the URL of each image has at most MAX_URL_CHARACTERS: it may be the whole file."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    urls = map(image_url, content)
    parts = [
        part if url is None or len(url) <= MAX_URL_CHARACTERS else image_part(f"{url[:MAX_URL_CHARACTERS]}…")
        for part, url in zip(content, urls, strict=True)
    ]
    return {**message, "content": parts}


def _route(scope: Scope) -> str | None:
    """Return the path pattern of the route, such as /v1/models/{name}; None for an unknown path.

    Metrics are labelled with patterns instead of paths, because clients could send any number of different paths.
    """
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else None
