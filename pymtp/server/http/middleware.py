"""Middleware for all requests: request ids, and limits on connections, and on the size and transfer time of bodies."""

from __future__ import annotations

import asyncio
import re
import uuid

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymtp.server.http.errors import ErrorInfo, error_response

# A body that arrives slowly occupies memory for long. Its transfer may take BODY_TIMEOUT seconds, plus one second for
# each MIN_BODY_RATE bytes.
BODY_TIMEOUT = 20.0
MIN_BODY_RATE = 2**14
# The most digits of a Content-Length that are converted: int() raises an exception for more than 4,300 digits.
MAX_LENGTH_DIGITS = 18
OVER_CONNECTION_LIMIT = "over_connection_limit"  # key of scope["state"]: True if the connection exceeds the limit
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIdMiddleware:
    """Give each request an id: the client's X-Request-Id, or a new id. Also handles HEAD requests as GET requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get("x-request-id", "")
        request_id = client_id if _ID.fullmatch(client_id) else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        # HEAD is routed as GET; uvicorn does not send the body of a response to HEAD.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["request-id"] = request_id  # the name of the header that Anthropic's clients read
            await send(message)

        await self._app({**scope, "method": method}, receive, send_with_id)


class ConnectionLimitMiddleware:
    """Refuse requests that HttpProtocol has marked because their connection exceeds the limit."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["state"].get(OVER_CONNECTION_LIMIT):
            await self._app(scope, receive, send)
            return
        refusal = ErrorInfo(503, "too many connections", "overloaded_error", "too_many_connections", retry_after=1)
        await error_response(Request(scope), refusal, {"Connection": "close"})(scope, receive, send)


class BodyLimitMiddleware:
    """Refuse bodies that are too large, with or without Content-Length, and bodies that arrive too slowly."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float = BODY_TIMEOUT) -> None:
        self._app, self._max, self._seconds = app, max_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            wrong = ErrorInfo(400, "Content-Length must be a number of bytes", code="invalid_content_length")
            # The connection must be closed, because nobody knows where the body ends and the next request begins.
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
                why = (
                    f"the body arrived too slowly: after {self._seconds:g} seconds, the server expects "
                    f"{MIN_BODY_RATE} bytes per second"
                )
                late = ErrorInfo(408, why, code="body_too_slow")
                await error_response(Request(scope), late, {"Connection": "close"})(scope, receive, send)
                return
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > self._max or stated > self._max:
            large = ErrorInfo(413, f"the body has more than {self._max} bytes", code="body_too_large")
            # The connection must be closed, because the rest of the body is not read.
            await error_response(Request(scope), large, {"Connection": "close"})(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def read() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, read, send)
