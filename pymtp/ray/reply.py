"""The answer of a replica on its way to the client, and the error that a client gets if the replica is lost."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from pymtp.ray.routing import RESPONSES
from pymtp.server.http.errors import ANTHROPIC_PREFIX, ErrorInfo, error_body, error_response
from pymtp.server.http.sse import DONE, encode_events


class Reply:
    """An answer that is forwarded from a replica to the client.

    The status is not sent before the first part of the body, so that an error before that part can still change it.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._path: str = scope["path"]
        self._start: Message | None = None
        self._started = False
        self._finished = False
        self._response: dict[str, Any] | None = None  # for /v1/responses: the response object of the first event
        self._n_events = 0  # for /v1/responses: number of events sent so far

    async def send(self, message: Message) -> None:
        """Forward an ASGI message of the replica to the client."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if not self._started and self._start is not None:
            self._started = True
            await self._send(self._start)
        if self._path == RESPONSES:
            self._count_events(message.get("body", b""))
        await self._send(message)
        self._finished = not message.get("more_body", False)

    async def fail(self, failure: ErrorInfo) -> None:
        """Send an error to the client, unless the answer is complete.

        If nothing was sent yet, the client gets a status and a body. If a stream of events has started, the error is
        its last event. If another answer has started, raises RuntimeError, which makes the server close the connection.
        """
        if self._finished:
            return
        if not self._started:
            await error_response(Request(self._scope), failure)(self._scope, _disconnect, self._send)
            return
        assert self._start is not None
        if not Headers(raw=self._start["headers"]).get("content-type", "").startswith("text/event-stream"):
            raise RuntimeError(failure.message)
        await self._send({"type": "http.response.body", "body": self._error_event(failure), "more_body": False})

    def _error_event(self, failure: ErrorInfo) -> bytes:
        """Format an error as the last event of a stream, in the form of the API that the client uses."""
        if self._response is not None:
            error = {"code": failure.type, "message": failure.message}
            response = {**self._response, "status": "failed", "error": error}
            event = {"type": "response.failed", "response": response, "sequence_number": self._n_events}
            return encode_events([event]) + DONE
        body = error_body(self._path, failure, self._scope["state"]["request_id"])
        if self._path.startswith(ANTHROPIC_PREFIX):
            return encode_events([body])
        return b"data: %s\n\n" % json.dumps(body).encode()

    def _count_events(self, body: bytes) -> None:
        """Count the events in a part of the body, and keep the response of the first one.

        Each part consists of one or more whole events.
        """
        for line in body.split(b"\n"):
            if line.startswith(b"data: {"):
                if self._response is None:
                    self._response = json.loads(line.removeprefix(b"data: ")).get("response")
                self._n_events += 1


async def _disconnect() -> Message:
    return {"type": "http.disconnect"}
