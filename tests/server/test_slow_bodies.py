"""Claims about bodies that come slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat

from starlette.types import Message, Receive, Scope, Send

from pymtp.server.http.limits import BODY_RATE, BodyLimit

SECONDS = 0.01


def sent_for(pieces: Iterator[bytes]) -> list[Message]:
    """What is sent for a body that comes in pieces, each a while after the one before; of which the last is empty."""
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
    asyncio.run(asyncio.wait_for(BodyLimit(app, 2**30, seconds=SECONDS)(scope, receive, send), 60))
    return sent


def test_a_body_that_comes_byte_by_byte_is_refused_and_its_connection_closed() -> None:
    start, body = sent_for(repeat(b" "))
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert b"body_too_slow" in body["body"]


def test_a_large_body_may_take_as_long_as_its_size_allows() -> None:
    (came,) = sent_for(iter([b" " * BODY_RATE] * 20 + [b""]))
    assert len(came["body"]) == 20 * BODY_RATE
