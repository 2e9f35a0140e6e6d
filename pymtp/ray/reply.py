"""An answer that comes from a replica, and what a client is told when no more comes."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from pymtp.ray.lead import RESPONSES
from pymtp.server.http.errors import ANTHROPIC, Failure, error_body, error_response
from pymtp.server.http.named_events import named_events
from pymtp.server.http.sse import DONE


class Reply:
    """Hands an answer on. Its status goes with the first of its body, so that what fails before can have another."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._path: str = scope["path"]
        self._start: Message | None = None
        self._begun = False
        self._ended = False
        self._response: dict[str, Any] | None = None  # of /v1/responses, as its first event has it
        self._n_events = 0  # of /v1/responses

    async def send(self, message: Message) -> None:
        """Hands on a message of ASGI."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if not self._begun and self._start is not None:
            self._begun = True
            await self._send(self._start)
        if self._path == RESPONSES:
            self._look_at(message.get("body", b""))
        await self._send(message)
        self._ended = not message.get("more_body", False)

    async def fail(self, why: Failure) -> None:
        """Nothing comes any more. Tells so by the status, or by an event where a stream has begun. Raises RuntimeError
        where neither is possible, which cuts the connection."""
        if self._ended:
            return
        if not self._begun:
            await error_response(Request(self._scope), why)(self._scope, _nothing, self._send)
            return
        assert self._start is not None
        if not Headers(raw=self._start["headers"]).get("content-type", "").startswith("text/event-stream"):
            raise RuntimeError(why.message)
        await self._send({"type": "http.response.body", "body": self._event(why), "more_body": False})

    def _event(self, why: Failure) -> bytes:
        """The last event of a stream, in the form of its API."""
        if self._response is not None:
            error = {"code": why.type, "message": why.message}
            response = {**self._response, "status": "failed", "error": error}
            event = {"type": "response.failed", "response": response, "sequence_number": self._n_events}
            return named_events([event]) + DONE
        told = error_body(self._path, why, self._scope["state"]["request_id"])
        return named_events([told]) if self._path.startswith(ANTHROPIC) else b"data: %s\n\n" % json.dumps(told).encode()

    def _look_at(self, body: bytes) -> None:
        """Counts events: they come whole, one or several at a time."""
        for line in body.split(b"\n"):
            if line.startswith(b"data: {"):
                if self._response is None:
                    self._response = json.loads(line.removeprefix(b"data: ")).get("response")
                self._n_events += 1


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
