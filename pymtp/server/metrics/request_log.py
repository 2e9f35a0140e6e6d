"""A line in the log for each HTTP request, with what came of its texts."""

from __future__ import annotations

import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymtp.chat import Chat
from pymtp.server.metrics.logs import log

LEFT = 499  # the client left before there was an answer: as nginx counts
QUIET = ("/health", "/metrics", "/figures")  # machines ask for these every few seconds
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # a client may send any word
LONGEST = 200  # characters of a path that is none of ours


class Count(Protocol):
    """Counts a request by its method, route and status."""

    def __call__(self, method: str, route: str, status: int) -> None: ...


@dataclass
class Entry:
    """What is logged of a request. Its texts are told together, where there are several."""

    prompt: Any = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    time_to_first_token: float | None = None
    finish_reasons: list[str] = field(default_factory=list)

    def of_texts(self) -> dict[str, Any]:
        """What there is to say of the texts; nothing of a request for none."""
        if self.prompt_tokens is None:
            return {}
        first = self.time_to_first_token
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "time_to_first_token": None if first is None else round(first, 6),
            "finish_reason": ",".join(self.finish_reasons) or None,
        }


_entry: ContextVar[Entry | None] = ContextVar("entry", default=None)


def current_entry() -> Entry | None:
    """Of the HTTP request that this task works for."""
    return _entry.get()


class RequestLog:
    """Around an ASGI app: a line for each request. What stands around it gives requests their ids."""

    def __init__(self, app: ASGIApp, count: Count, *, prompts: bool = False) -> None:
        """prompts: whether they are logged, too."""
        self._app, self._count, self._prompts = app, count, prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, entry = time.perf_counter(), LEFT, Entry()

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = _entry.set(entry)
        try:
            await self._app(scope, receive, note)
        except Exception:
            status = 500
            raise  # who answers it, logs it
        finally:
            _entry.reset(token)
            self._write(scope, entry, status, time.perf_counter() - begun)

    def _write(self, scope: Scope, entry: Entry, status: int, seconds: float) -> None:
        method, route = scope["method"], _route(scope)
        self._count(method if method in METHODS else "other", route or "other", status)
        where = route or scope["path"][:LONGEST]
        fields = {
            "method": method,
            "route": where,
            "status": status,
            "request_id": scope["state"]["request_id"],
            "client": scope["client"][0] if scope.get("client") else None,
            "seconds": round(seconds, 6),
            **entry.of_texts(),
        }
        if self._prompts and entry.prompt is not None:
            fields["prompt"] = entry.prompt.messages if isinstance(entry.prompt, Chat) else entry.prompt
        log.log(logging.DEBUG if route in QUIET else logging.INFO, "request", extra={"fields": fields})


def _route(scope: Scope) -> str | None:
    """The pattern that a path was found by: there are few of them, whatever clients ask for."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else None
