"""Middleware for all requests: ids, limits on connections and on bodies, and the answers of a server that ends."""

from __future__ import annotations

import asyncio
import re
import uuid
from functools import partial

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymtp.engine.request import Caller, current_caller
from pymtp.server.errors import cancelled_error
from pymtp.server.heap import HEAP
from pymtp.server.http.body_budget import BodyBudget, Reservation
from pymtp.server.http.errors import ErrorInfo, error_info, error_response

# A body that arrives slowly occupies memory for long. Its transfer may take BODY_TIMEOUT seconds, plus one second for
# each MIN_BODY_RATE bytes.
BODY_TIMEOUT = 20.0
MIN_BODY_RATE = 2**14
BODIES = 2  # largest bodies that are in memory at the same time
# The most digits of a Content-Length that are converted: int() raises an exception for more than 4,300 digits.
MAX_LENGTH_DIGITS = 18
# Keys of scope["state"]: True if the connection exceeds the limit; a digest of the request's API key, if the server has
# keys; a function that takes the number of bytes that the body has after it was decompressed
OVER_CONNECTION_LIMIT = "over_connection_limit"
KEY_DIGEST = "key_digest"
RESIZE_BODY = "resize_body"
# What a body with images has: the name of a field or of a type, or an ASCII letter that is written as its number.
_IMAGES = re.compile(rb'"(?:images?|image_url|input_image|multimodal_data)"|\\u00[4-7]')
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


class ShutdownMiddleware:
    """Answer requests that uvicorn cancels at the end of the grace, as it answers the others that it aborts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if started or scope["type"] != "http":
                raise
            await error_response(Request(scope), error_info(cancelled_error()))(scope, receive, send)


class BodyLimitMiddleware:
    """Read whole bodies, within the budget of all bodies; refuse those that are too large or arrive too slowly.

    Also says who calls: see `current_caller`.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, seconds: float = BODY_TIMEOUT, budget_bytes: int | None = None
    ) -> None:
        """max_bytes: the largest body. budget_bytes: the largest sum of all bodies; None for BODIES times max_bytes."""
        self._app, self._max, self._seconds = app, max_bytes, seconds
        self._budget = BodyBudget(max(budget_bytes or BODIES * max_bytes, max_bytes), max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            # The connection is closed, because nobody knows where the body ends and the next request begins.
            refusal = ErrorInfo(400, "Content-Length must be a number of bytes", code="invalid_content_length")
            await self._refuse(refusal, scope, receive, send)
            return
        digits = length.lstrip("0") or "0"
        stated = int(digits) if len(digits) <= MAX_LENGTH_DIGITS else self._max + 1
        if stated > self._max:
            await self._refuse(self._too_large(), scope, receive, send)
            return
        owner = scope.get("state", {}).get(KEY_DIGEST, "")
        client = owner or (scope["client"][0] if scope.get("client") else "")
        # the size of a decompressed body is not known before
        size = self._max if headers.get("content-encoding", "identity") != "identity" else stated
        reserved = await self._budget.reserve(client, size)
        if reserved is None:
            await self._refuse(self._no_room(size), scope, receive, send)
            return
        try:
            body = await self._read(reserved, receive)
            if body is None:
                return
            if isinstance(body, ErrorInfo):
                await self._refuse(body, scope, receive, send)
                return
            if size == stated:
                self._budget.resize(reserved, len(body))
            caller = Caller(client, owner, object(), len(body), _IMAGES.search(body) is not None)
            scope.setdefault("state", {})[RESIZE_BODY] = partial(self._resize, reserved, caller)
            current_caller.set(caller)
            whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]
            del body

            async def read() -> Message:
                return whole.pop() if whole else await receive()

            await self._app(scope, read, send)
        finally:
            self._budget.release(reserved)
            HEAP.on_freed(reserved.size)

    async def _read(self, reserved: Reservation, receive: Receive) -> bytearray | ErrorInfo | None:
        """Read a body. Return a refusal of the rest, or None if the client has disconnected."""
        body, more = bytearray(), True
        loop = asyncio.get_running_loop()
        while more:
            end = reserved.begun + self._seconds + len(body) / MIN_BODY_RATE
            receiving = reserved.receiving = asyncio.ensure_future(receive())
            try:
                await asyncio.wait({receiving}, timeout=end - loop.time())
            finally:
                reserved.receiving = None
                receiving.cancel()
            if reserved.revoked:
                return self._no_room(reserved.size)
            if not receiving.done():
                why = (
                    f"the body arrived too slowly: after {self._seconds:g} seconds, the server expects "
                    f"{MIN_BODY_RATE} bytes per second"
                )
                return ErrorInfo(408, why, code="body_too_slow")
            message = receiving.result()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._max:
                return self._too_large()
            if more and len(body) > reserved.size:  # a body without Content-Length
                waited = loop.time()
                if not await self._budget.grow(reserved, self._max):
                    return self._no_room(self._max)
                reserved.begun += loop.time() - waited
        return body

    def _resize(self, reserved: Reservation, caller: Caller, size: int) -> None:
        self._budget.resize(reserved, size)
        current_caller.set(caller._replace(n_bytes=size))

    def _too_large(self) -> ErrorInfo:
        return ErrorInfo(413, f"the body has more than {self._max} bytes", code="body_too_large")

    def _no_room(self, size: int) -> ErrorInfo:
        seconds = self._budget.retry_after(size)
        message = f"the bodies of other requests take all memory for bodies: try again in {seconds} seconds"
        return ErrorInfo(503, message, "overloaded_error", "too_many_bodies", retry_after=seconds)

    async def _refuse(self, refusal: ErrorInfo, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with an error, and close the connection, because the rest of the body is not read."""
        await error_response(Request(scope), refusal, {"Connection": "close"})(scope, receive, send)
