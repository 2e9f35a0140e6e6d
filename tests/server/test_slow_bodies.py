"""A claim about bodies that do not come to their end."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send

from pymtp.server.limits import BodyLimit


def test_a_body_that_takes_too_long_is_refused_and_its_connection_closed() -> None:
    asked: list[Scope] = []
    sent: list[Message] = []
    pieces = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope)

    async def receive() -> Message:
        if not pieces:
            await asyncio.Event().wait()
        return pieces.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/tokenize", "headers": [], "query_string": b"", "state": {}}
    asyncio.run(asyncio.wait_for(BodyLimit(app, 1000, seconds=0.01)(scope, receive, send), 60))
    assert not asked
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert b"body_too_slow" in sent[1]["body"]
