"""One connection of a client, for uvicorn: what it may take of time and memory while no request of it is answered."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pymtp.server.http.limits import CROWDED

IDLE = 75.0  # seconds without a request, or until its headers are there: longer than the proxies in front (nginx: 60)
SLOWEST = 60.0  # seconds within which a client has to take LEAST bytes of what is sent to it
LEAST = 2**14  # what asyncio's transports wait for before they take more
MOST_HEADERS = 2**16  # bytes
MORE = 512  # connections beyond the limit that may stay until they ask, to be told so


class Connection(HttpToolsProtocol):
    """Ends where the client is silent for long, takes nothing, or sends headers without end. Requests of a connection
    beyond uvicorn's limit_concurrency are marked as CROWDED. Trailers are passed over: they are no headers (RFC 9110,
    6.5.1)."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn would answer with plain text
        self._idle: asyncio.TimerHandle | None = None  # while headers are waited for
        self._stalled: asyncio.TimerHandle | None = None  # while more is to be sent than the client takes
        self._unsent = 0  # bytes, when that timer began
        self._n_headers: int | None = None  # bytes of those that are not whole, where there are such
        self._n_between: int = 0  # bytes behind the headers since the last of a body: sizes of chunks, trailers
        self._is_crowded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As asyncio's."""
        super().connection_made(transport)
        self._wait_for_headers()
        if self._most is not None:
            self._is_crowded = len(self.connections) > self._most
            if len(self.connections) > self._most + MORE:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio's."""
        self._stop(self._idle)
        self._stop(self._stalled)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As asyncio's."""
        begun = self._n_headers is not None
        self._n_between += len(data)
        super().data_received(data)
        if begun and self._n_headers is not None:
            self._n_headers += len(data)
        if (self._n_headers or self._n_between) > MOST_HEADERS:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """As httptools'."""
        super().on_message_begin()
        self._n_headers = 0
        self._wait_for_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """As httptools'."""
        if self._n_headers is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """As httptools'."""
        self.scope["state"][CROWDED] = self._is_crowded
        super().on_headers_complete()  # raises for what is no request: the timer goes on then
        self._stop(self._idle)
        self._idle = self._n_headers = None
        self._n_between = 0

    def on_body(self, body: bytes) -> None:
        """As httptools'."""
        self._n_between = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """As httptools'."""
        self._n_between = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn's."""
        super().send_400_response(msg)
        self._wait_for_headers()  # for the client to take it

    def on_response_complete(self) -> None:
        """As uvicorn's."""
        super().on_response_complete()
        if self._idle is None:  # the headers of a next request may be on their way
            self._wait_for_headers()

    def pause_writing(self) -> None:
        """As asyncio's."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """As asyncio's."""
        super().resume_writing()
        self._stop(self._stalled)
        if self._idle is not None:  # of an answer that was whole, most is taken by now
            self._wait_for_headers()

    def _watch(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(SLOWEST, self._end_stalled)

    def _end_stalled(self) -> None:
        if self._unsent - self.transport.get_write_buffer_size() < LEAST:
            self.transport.abort()  # to close would wait for the client
        else:
            self._watch()

    def _wait_for_headers(self) -> None:
        self._stop(self._idle)
        self._idle = self.loop.call_later(IDLE, self._end_idle)

    def _end_idle(self) -> None:
        is_running = self.cycle is not None and not self.cycle.response_complete
        if is_running and not self.transport.is_closing():
            self._idle = None  # of a pipelined request, they have time again after the answer before
        elif not self.flow.write_paused:
            self.transport.abort()  # as above

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
