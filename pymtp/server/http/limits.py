"""What a request has to bring, and how large it may be, before anything else looks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymtp.server.http.errors import Failure, error_response

# without a key: whether it is up, and the pages, which ask for one
OPEN = ("/", "/favicon.ico", "/health", "/v1/health", "/figures.html", "/openapi.json")
OPEN_FOLDER = "/static/"

# A body may take so many seconds, and one more for so many bytes of it that came: memory is held meanwhile.
BODY_SECONDS = 20.0
BODY_RATE = 2**14

MOST_DIGITS = 18  # of a body's length: Python reads no integer of more than 4,300

CROWDED = "crowded"  # in a request's state: whether there are more connections than may be


class Crowd:
    """Turns requests away whose connection is one too many."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["state"].get(CROWDED):
            await self._app(scope, receive, send)
            return
        crowd = Failure(503, "too many connections", "overloaded_error", "too_many_connections", retry_after=1)
        await error_response(Request(scope), crowd, {"Connection": "close"})(scope, receive, send)


class Keys:
    """Lets requests through that have one of the keys: `Authorization: Bearer …` or `x-api-key`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope["path"]) or scope["method"] == "OPTIONS" or self._fits(scope):
            await self._app(scope, receive, send)
            return
        missing = Failure(401, "no API key that this server knows", code="invalid_api_key")
        await error_response(Request(scope), missing, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _fits(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # either will do: clients that are made for one header send what they have of the other along
        given = [token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        digests = [sha256(key.encode("latin-1")).digest() for key in given]  # as it came: bytes, read as Latin-1
        # all of them, and digests: the time tells neither which key was nearest nor how long one is
        return any([compare_digest(digest, known) for digest in digests for known in self._digests])


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_FOLDER)


def guard_schema(app: FastAPI) -> None:
    """Says in the app's schema which paths need a key."""
    schema = app.openapi()  # kept by the app
    schema.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in schema["paths"].items():
        for operation in operations.values() if not _is_open(path) else ():
            operation["security"] = [{"bearer": []}, {"x-api-key": []}]


class BodyLimit:
    """Refuses bodies of more bytes than may come, those of no stated length too, and bodies that come too slowly."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float = BODY_SECONDS) -> None:
        self._app, self._max, self._seconds = app, max_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            wrong = Failure(400, "Content-Length must be a number of bytes", code="invalid_content_length")
            # closed: where the body ends is not known
            await error_response(Request(scope), wrong, {"Connection": "close"})(scope, receive, send)
            return
        digits = length.lstrip("0") or "0"
        stated = int(digits) if len(digits) <= MOST_DIGITS else self._max + 1
        body = bytearray()
        more = True
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while more and len(body) <= self._max and stated <= self._max:
            try:
                end = begun + self._seconds + len(body) / BODY_RATE
                message = await asyncio.wait_for(receive(), end - loop.time())
            except asyncio.TimeoutError:
                why = f"after {self._seconds:g} seconds the body came slower than {BODY_RATE} bytes a second"
                late = Failure(408, why, code="body_too_slow")
                await error_response(Request(scope), late, {"Connection": "close"})(scope, receive, send)
                return
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > self._max or stated > self._max:
            large = Failure(413, f"the body has more than {self._max} bytes", code="body_too_large")
            # closed: what still comes is not read
            await error_response(Request(scope), large, {"Connection": "close"})(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def read() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, read, send)
