"""Streams of events, and clients that leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pymtp.errors import PymtpError
from pymtp.server.refusals import GoneError

_logger = logging.getLogger("pymtp.server")
T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
SLOWEST = 60.0  # seconds that a client may take nothing of what is sent to it


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
    """Sends events as they come. Where the client leaves, or takes nothing for long, the iterator is closed.

    The status is sent with the first event: what fails before it is an error like that of any other request.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        failed: Callable[[Exception], bytes],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """failed: the event that tells of an error in the middle."""
        self.status_code = 200
        self.body_iterator = events
        self._failed = failed
        self.background = None
        no_buffers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self.init_headers({"Content-Type": "text/event-stream; charset=utf-8", **no_buffers, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(GoneError):
            await until_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        events = self.body_iterator
        begun = False
        watch = _Watch(asyncio.current_task())
        try:
            async for event in events:
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    begun = True
                watch.begin()
                await send({"type": "http.response.body", "body": event, "more_body": True})
                watch.end()
        except Exception as error:
            if not begun:
                raise
            if not isinstance(error, PymtpError):
                _logger.exception("a stream failed")
            await send({"type": "http.response.body", "body": self._failed(error), "more_body": True})
        finally:
            watch.close()
            await events.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Watch:
    """Cancels a task that waits for its client too long. One timer for a stream, not one for each event."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self._task, self._loop = task, asyncio.get_running_loop()
        self._since: float | None = None
        self._timer = self._loop.call_later(SLOWEST, self._look)

    def begin(self) -> None:
        """It begins to wait."""
        self._since = self._loop.time()

    def end(self) -> None:
        """It waits no more."""
        self._since = None

    def close(self) -> None:
        """Nothing is sent any more."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if self._since is not None and now - self._since >= SLOWEST and self._task is not None:
            self._task.cancel()
            return
        self._timer = self._loop.call_at((now if self._since is None else self._since) + SLOWEST, self._look)
