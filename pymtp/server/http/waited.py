"""How long a front has kept a request before it passed it to this worker: the time counts towards its timeout."""

from __future__ import annotations

from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

WAITED_HEADER = "x-pymtp-waited"  # seconds; a front replaces the header of a client

# The seconds that the current HTTP request has waited in a front
waited_seconds: ContextVar[float] = ContextVar("waited_seconds", default=0.0)


class WaitedMiddleware:
    """Read the front's header. Only workers behind a front have this middleware: a client could lie."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            waited_seconds.set(float(Headers(scope=scope).get(WAITED_HEADER, 0.0)))
        await self._app(scope, receive, send)
