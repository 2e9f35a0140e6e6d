"""Tests of request bodies that arrive slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat

from starlette.types import Message, Receive, Scope, Send

from pymtp.server.http.middleware import MIN_BODY_RATE, BodyLimitMiddleware

SECONDS = 0.01


def response_to(pieces: Iterator[bytes]) -> list[Message]:
    """Send a body with a delay before each piece, and return the messages of the response.

    pieces: the pieces of the body; an empty piece ends the body.
    """
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(await receive())

    async def receive() -> Message:
        await asyncio.sleep(SECONDS / 4)
        piece = next(pieces)
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/tokenize", "headers": [], "query_string": b"", "state": {}}
    asyncio.run(asyncio.wait_for(BodyLimitMiddleware(app, 2**30, seconds=SECONDS)(scope, receive, send), 60))
    return sent


def test_slow_body_is_refused_and_its_connection_is_closed() -> None:
    start, body = response_to(repeat(b" "))
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert b"body_too_slow" in body["body"]


def test_body_timeout_grows_with_the_received_bytes() -> None:
    (came,) = response_to(iter([b" " * MIN_BODY_RATE] * 20 + [b""]))
    assert len(came["body"]) == 20 * MIN_BODY_RATE
