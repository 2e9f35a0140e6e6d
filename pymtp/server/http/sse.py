"""Streams of events, and clients that leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pymtp.errors import PymtpError
from pymtp.server.errors import GoneError

_logger = logging.getLogger("pymtp.server")
T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
QUIET = 10.0  # seconds without an event, after which something else is sent
WAITING = b": waiting\n\n"  # a comment: clients pass over it


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Raises GoneError when the client leaves, and `work` is cancelled then."""
    gone = asyncio.ensure_future(_left(receive))
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait((gone, working), return_when=asyncio.FIRST_COMPLETED)
        if not working.done() or working.cancelled():
            raise GoneError
        return working.result()
    finally:
        for task in (gone, working):
            task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await working  # what it holds is free when this returns


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """As until_gone, of a request whose body was read."""
    return await until_gone(request.receive, work)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events as they come. Where the client leaves, the iterator is closed.

    The status is sent with the first event: what fails before it is an error like that of any other request. While
    events are long in coming, comments are sent, and the status with the first of them: proxies close connections that
    are silent for a minute.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        failed: Callable[[Exception], bytes],
        headers: Mapping[str, str] | None = None,
        *,
        waiting: bytes = WAITING,
    ) -> None:
        """failed: the event that tells of an error in the middle. waiting: what is sent while there is no event."""
        self.status_code = 200
        self.body_iterator = events
        self._failed, self._waiting = failed, waiting
        self.background = None
        no_buffers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self.init_headers({"Content-Type": "text/event-stream; charset=utf-8", **no_buffers, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(GoneError):
            await until_gone(receive, self._send_all(_Body(send, self.raw_headers)))

    async def _send_all(self, body: _Body) -> None:
        events = self.body_iterator
        waiting = asyncio.ensure_future(body.repeat(self._waiting))
        try:
            async for event in events:
                await body.send(event)
        except Exception as error:
            waiting.cancel()
            if not body.begun:
                raise
            if not isinstance(error, PymtpError):
                _logger.exception("a stream failed")
            await body.send(self._failed(error))
        finally:
            waiting.cancel()
            await events.aclose()  # type: ignore[attr-defined]
        await body.send(b"", more=False)


class _Body:
    """What is sent of an answer: its status and headers with the first of it. begun: whether they were."""

    def __init__(self, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.begun = False
        self._send, self._headers = send, headers
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._turn = asyncio.Lock()

    async def send(self, data: bytes, *, more: bool = True) -> None:
        """Waits while the client takes nothing."""
        async with self._turn:
            if not self.begun:
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                self.begun = True
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
            self._last = self._loop.time()

    async def repeat(self, data: bytes) -> None:
        """Sends it whenever nothing else was sent for QUIET seconds."""
        while True:
            if (left := self._last + QUIET - self._loop.time()) > 0:
                await asyncio.sleep(left)
            else:
                await self.send(data)
