"""Streams of server-sent events, and cancellation of work when the client disconnects."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pymtp.errors import PymtpError
from pymtp.server.errors import ClientDisconnectedError, cancelled_error
from pymtp.server.http.json_response import PreencodedObject

_logger = logging.getLogger("pymtp.server")
T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
KEEPALIVE_SECONDS = 10.0  # seconds without an event, after which a keepalive is sent
KEEPALIVE = b": waiting\n\n"  # an SSE comment, which clients ignore


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects, cancel `work` and raise ClientDisconnectedError."""
    disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait((disconnected, working), return_when=asyncio.FIRST_COMPLETED)
        if not working.done() or working.cancelled():
            raise ClientDisconnectedError
        return working.result()
    finally:
        for task in (disconnected, working):
            task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await working  # so that `work` has released its resources when this function returns


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A streaming response of encoded events. If the client disconnects, the iterator of the events is closed.

    The status is sent with the first event or keepalive; an error before that is answered with its own status.
    Keepalives are sent while there is no event, because proxies close connections that are silent for a minute.

    resources: closed after the last event, and also if no event was asked for.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        encode_error: Callable[[Exception], bytes],
        headers: Mapping[str, str] | None = None,
        *,
        keepalive: bytes = KEEPALIVE,
    ) -> None:
        """events: the encoded events.

        encode_error: encodes an error that occurs after the status was sent.
        headers: further headers of the response.
        keepalive: the data to send while there is no event.
        """
        self.status_code = 200
        self.body_iterator, self.resources = events, AsyncExitStack()
        self._encode_error, self._keepalive = encode_error, keepalive
        self.background = None
        no_buffers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self.init_headers({"Content-Type": "text/event-stream; charset=utf-8", **no_buffers, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _ResponseBody(send, self.raw_headers)
        try:
            async with self.resources:
                with suppress(ClientDisconnectedError):
                    await run_until_disconnect(receive, self._send_all(body))
        except asyncio.CancelledError:  # by uvicorn, when the server shuts down
            if not body.started:
                raise
            await body.send(self._encode_error(cancelled_error()))
            await body.send(b"", more=False)

    async def _send_all(self, body: _ResponseBody) -> None:
        events = self.body_iterator
        keepalives = asyncio.ensure_future(body.send_keepalives(self._keepalive))
        try:
            async for event in events:
                await body.send(event)
        except Exception as error:
            keepalives.cancel()
            if not body.started:
                raise
            if not isinstance(error, PymtpError):
                _logger.exception("a stream failed")
            await body.send(self._encode_error(error))
        finally:
            keepalives.cancel()
            await events.aclose()  # type: ignore[attr-defined]
        await body.send(b"", more=False)


class _ResponseBody:
    """The body of a streaming response. started: whether the status and headers, which precede the body, were sent."""

    def __init__(self, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.started = False
        self._send, self._headers = send, headers
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self._lock = asyncio.Lock()

    async def send(self, data: bytes, *, more: bool = True) -> None:
        """Send data, with the status and headers before the first data. Waits while the send buffer is full."""
        async with self._lock:
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                self.started = True
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
            self._last_sent = self._loop.time()

    async def send_keepalives(self, data: bytes) -> None:
        """Send `data` whenever nothing has been sent for KEEPALIVE_SECONDS, until this task is cancelled."""
        while True:
            if (left := self._last_sent + KEEPALIVE_SECONDS - self._loop.time()) > 0:
                await asyncio.sleep(left)
            else:
                await self.send(data)


def encode_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode events as server-sent events. The `type` of an event is also its name."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), _json(event).encode()) for event in events)


def _json(event: Mapping[str, Any]) -> str:
    response = event.get("response")
    if not isinstance(response, PreencodedObject):
        return json.dumps(event)
    others = {name: value for name, value in event.items() if name != "response"}
    return f'{json.dumps(others)[:-1]}, "response": {response.json()}}}'
