"""Middleware that decompresses the bodies of requests."""

from __future__ import annotations

import asyncio
import zlib

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymtp.server.http.errors import ErrorInfo, error_response
from pymtp.server.http.middleware import RESIZE_BODY

CODINGS = ("gzip", "deflate")
MAX_CODINGS = 2  # codings of one body: each may multiply its size by a thousand
MAX_MEMBERS = 64  # a gzip body may have so many; after each member, zlib copies the rest


class DecompressionMiddleware:
    """Decompress bodies with a Content-Encoding of gzip or deflate, and refuse all other codings with status 415.

    The limit on the size of a body holds for the decompressed body: a body of a few kilobytes may decompress to
    gigabytes, so no more than the limit is ever decompressed. Must come after BodyLimitMiddleware, which passes bodies
    on as one message.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = ",".join(Headers(scope=scope).getlist("content-encoding")) if scope["type"] == "http" else ""
        names = [name.strip().lower() for name in header.split(",")]
        codings = [name.removeprefix("x-") for name in names if name not in ("", "identity")]
        if not codings:
            await self._app(scope, receive, send)
            return
        if unknown := [coding for coding in codings if coding not in CODINGS]:
            message = f"Content-Encoding {unknown[0]!r:.40} is not supported: send gzip, deflate or no coding"
            refusal = ErrorInfo(415, message, code="unsupported_content_encoding")
        elif len(codings) > MAX_CODINGS:
            message = f"Content-Encoding has more than {MAX_CODINGS} codings"
            refusal = ErrorInfo(415, message, code="unsupported_content_encoding")
        else:
            message_in = await receive()
            if message_in["type"] != "http.request":
                return
            # on a thread: a body of the maximum size takes a tenth of a second
            decompressed = await asyncio.to_thread(self._decompress, message_in.get("body", b""), codings)
            if isinstance(decompressed, bytes):
                if (resize := scope.get("state", {}).get(RESIZE_BODY)) is not None:
                    resize(len(decompressed))
                # the same scope, because the routes and the log share it
                scope["headers"] = _without_encoding(scope, len(decompressed))
                await self._app(scope, _replay(decompressed, receive), send)
                return
            refusal = decompressed
        await error_response(Request(scope), refusal)(scope, receive, send)

    def _decompress(self, body: bytes, codings: list[str]) -> bytes | ErrorInfo:
        for coding in reversed(codings):  # the last coding was applied last
            try:
                body = _decompress(body, coding, self._max)
            except (zlib.error, EOFError) as error:
                return ErrorInfo(400, f"the body is not {coding}: {error}", code="invalid_body")
            if len(body) > self._max:
                return ErrorInfo(413, f"the decompressed body has more than {self._max} bytes", code="body_too_large")
        return body


def _decompress(body: bytes, coding: str, limit: int) -> bytes:
    """Decompress a body, but no more than limit + 1 bytes.

    Raises zlib.error, also for more than MAX_MEMBERS, and EOFError for an incomplete body.
    """
    # deflate is zlib's format (RFC 9110, 8.4.1.2), but some clients send it without zlib's header
    raw = coding == "deflate" and not (
        len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    )
    wbits = 31 if coding == "gzip" else -15 if raw else 15
    result, n_members = bytearray(), 0
    while body and len(result) <= limit:  # gzip's format allows several members
        n_members += 1
        if n_members > MAX_MEMBERS:
            raise zlib.error(f"it has more than {MAX_MEMBERS} members")
        decompressor = zlib.decompressobj(wbits)
        result += decompressor.decompress(body, limit + 1 - len(result))
        if not decompressor.eof and len(result) <= limit:
            raise EOFError("it is incomplete")
        body = decompressor.unused_data if coding == "gzip" else b""
    return bytes(result)


def _without_encoding(scope: Scope, length: int) -> list[tuple[bytes, bytes]]:
    headers = [
        (name, value) for name, value in scope["headers"] if name not in (b"content-encoding", b"content-length")
    ]
    return [*headers, (b"content-length", str(length).encode())]


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return messages.pop() if messages else await receive()

    return read
