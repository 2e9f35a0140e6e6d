"""Middleware that limits connections, and the size and duration of request bodies."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymtp.server.http.errors import ErrorInfo, error_response

# A body holds memory while it comes: it may take BODY_TIMEOUT seconds, and one more for each MIN_BODY_RATE bytes.
BODY_TIMEOUT = 20.0
MIN_BODY_RATE = 2**14

MAX_LENGTH_DIGITS = 18  # Content-Length; int() refuses more than 4,300 digits

OVER_CONNECTION_LIMIT = "over_connection_limit"  # key of the scope's state: the connection exceeds the limit


class ConnectionLimitMiddleware:
    """Refuse requests of connections beyond the limit, which HttpProtocol marks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["state"].get(OVER_CONNECTION_LIMIT):
            await self._app(scope, receive, send)
            return
        refusal = ErrorInfo(503, "too many connections", "overloaded_error", "too_many_connections", retry_after=1)
        await error_response(Request(scope), refusal, {"Connection": "close"})(scope, receive, send)


class BodyLimitMiddleware:
    """Refuse bodies that are too large, with or without Content-Length, and bodies that come too slowly."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float = BODY_TIMEOUT) -> None:
        self._app, self._max, self._seconds = app, max_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            wrong = ErrorInfo(400, "Content-Length must be a number of bytes", code="invalid_content_length")
            # The end of the body is unknown, so the connection closes.
            await error_response(Request(scope), wrong, {"Connection": "close"})(scope, receive, send)
            return
        digits = length.lstrip("0") or "0"
        stated = int(digits) if len(digits) <= MAX_LENGTH_DIGITS else self._max + 1
        body = bytearray()
        more = True
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while more and len(body) <= self._max and stated <= self._max:
            try:
                end = begun + self._seconds + len(body) / MIN_BODY_RATE
                message = await asyncio.wait_for(receive(), end - loop.time())
            except asyncio.TimeoutError:
                why = f"after {self._seconds:g} seconds the body came slower than {MIN_BODY_RATE} bytes a second"
                late = ErrorInfo(408, why, code="body_too_slow")
                await error_response(Request(scope), late, {"Connection": "close"})(scope, receive, send)
                return
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > self._max or stated > self._max:
            large = ErrorInfo(413, f"the body has more than {self._max} bytes", code="body_too_large")
            # The rest of the body is not read, so the connection closes.
            await error_response(Request(scope), large, {"Connection": "close"})(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def read() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, read, send)
