"""The protocol class of uvicorn's connections, with limits on idle time, unread data and headers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pymtp.server.http.header_case import capitalize_headers
from pymtp.server.http.middleware import OVER_CONNECTION_LIMIT

IDLE_TIMEOUT = 75.0  # seconds until a request's headers must be complete; nginx reuses idle connections for 60 seconds
WRITE_TIMEOUT = 60.0  # seconds in which a client must read at least MIN_WRITTEN_BYTES of a response
MIN_WRITTEN_BYTES = 2**14  # the low-water mark of asyncio's transports
MAX_HEADER_BYTES = 2**16  # the most bytes of headers, and also of trailers and chunk sizes
# Seconds between two probes of a client that has closed its side of the connection. Such a client either waits for the
# response, or is gone: TCP tells the two apart only when something is sent.
PROBE_SECONDS = 0.5
# The system of a client that has left forgets the connection, on Linux after a minute. TCP's own probes find this out
# even where HTTP has none: HTTP/1.0, and responses that have begun. Seconds between two of them.
KEEPALIVE_SECONDS = 10
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"  # clients ignore it (RFC 9110, 15.2)
# The number of connections beyond the limit that are still accepted, to answer their requests with status 503.
EXTRA_CONNECTIONS = 512


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with timeouts, limited headers and a limit of connections.

    A connection is closed if the client sends nothing for long, reads nothing for long, or sends endless headers.
    A client may close its side of the connection after its requests, and gets its responses. Requests on connections
    beyond uvicorn's limit_concurrency are marked with OVER_CONNECTION_LIMIT. Trailers are ignored, because they must
    not be treated as headers (RFC 9110, 6.5.1).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The limit is hidden from uvicorn, because its own refusals are in plain text, not in JSON.
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None
        self._idle_timer: asyncio.TimerHandle | None = None  # runs until the headers of the next request are complete
        self._write_timer: asyncio.TimerHandle | None = None  # runs while the send buffer is full
        self._unsent_bytes = 0  # the bytes in the send buffer when the write timer started
        self._header_bytes: int | None = None  # the header bytes received so far; None unless headers are incomplete
        self._bytes_since_body: int = 0  # the bytes of chunk sizes and trailers since the last body data
        self._is_over_limit = False
        self._is_half_closed = False  # whether the client has closed its side, and waits for responses
        self._probe_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Extend asyncio's callback."""
        super().connection_made(transport)
        self._start_idle_timer()
        if self._max_connections is not None:
            self._is_over_limit = len(self.connections) > self._max_connections
            if len(self.connections) > self._max_connections + EXTRA_CONNECTIONS:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Extend asyncio's callback."""
        self._cancel(self._idle_timer)
        self._cancel(self._write_timer)
        self._cancel(self._probe_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Extend asyncio's callback."""
        headers_began = self._header_bytes is not None
        self._bytes_since_body += len(data)
        super().data_received(data)
        if headers_began and self._header_bytes is not None:
            self._header_bytes += len(data)
        if (self._header_bytes or self._bytes_since_body) > MAX_HEADER_BYTES:
            self.transport.abort()

    def eof_received(self) -> bool:  # type: ignore[override] # uvicorn always closes the connection
        """Extend asyncio's callback: keep the connection open if a whole request has no whole response yet."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        if not self._is_half_closed:
            self._is_half_closed = True
            self._keep_alive()
            self._probe_later()
        return True

    def _keep_alive(self) -> None:
        """Let the system find out whether the other side still knows the connection."""
        connection = self.transport.get_extra_info("socket")
        if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):  # not every system has them
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, KEEPALIVE_SECONDS)

    def _probe_later(self) -> None:
        self._probe_timer = self.loop.call_later(PROBE_SECONDS, self._probe)

    def _probe(self) -> None:
        """Disconnect a client that has refused the last probe, and send the next probe where the protocol allows it.

        During a response that has begun, the response itself is the probe.
        """
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        # With a pipeline, another cycle than self.cycle is running, and its response may have begun.
        if not self.pipeline and not self.cycle.response_started and self.scope["http_version"] == "1.1":
            self.transport.write(PROBE)
        self._probe_later()

    def on_message_begin(self) -> None:
        """Handle httptools' callback."""
        super().on_message_begin()
        self._header_bytes = 0
        self._start_idle_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle httptools' callback."""
        if self._header_bytes is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle httptools' callback."""
        self.scope["state"][OVER_CONNECTION_LIMIT] = self._is_over_limit
        super().on_headers_complete()  # raises for an invalid request, and the idle timer must then keep running
        capitalize_headers(self.cycle)
        self._cancel(self._idle_timer)
        self._idle_timer = self._header_bytes = None
        self._bytes_since_body = 0

    def on_body(self, body: bytes) -> None:
        """Handle httptools' callback."""
        self._bytes_since_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle httptools' callback."""
        self._bytes_since_body = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Extend uvicorn's method."""
        super().send_400_response(msg)
        self._start_idle_timer()  # the client gets this time to read the response

    def on_response_complete(self) -> None:
        """Extend uvicorn's method."""
        is_last = not self.pipeline
        super().on_response_complete()
        if self._is_half_closed and is_last:
            self.transport.close()
            return
        if self._idle_timer is None:  # otherwise the next request has begun already, and its timer runs
            self._start_idle_timer()

    def pause_writing(self) -> None:
        """Extend asyncio's callback."""
        super().pause_writing()
        self._check_progress_later()

    def resume_writing(self) -> None:
        """Extend asyncio's callback."""
        super().resume_writing()
        self._cancel(self._write_timer)
        if self._idle_timer is not None:  # the response is complete, and the client has read most of it
            self._start_idle_timer()

    def _check_progress_later(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT, self._on_write_timeout)

    def _on_write_timeout(self) -> None:
        if self._unsent_bytes - self.transport.get_write_buffer_size() < MIN_WRITTEN_BYTES:
            self.transport.abort()  # not close(), which would wait until the client has read everything
        else:
            self._check_progress_later()

    def _start_idle_timer(self) -> None:
        self._cancel(self._idle_timer)
        self._idle_timer = self.loop.call_later(IDLE_TIMEOUT, self._on_idle_timeout)

    def _on_idle_timeout(self) -> None:
        is_running = self.cycle is not None and not self.cycle.response_complete
        if is_running and not self.transport.is_closing():
            self._idle_timer = None  # a pipelined request waits: its idle timer starts after the running response
        elif not self.flow.write_paused:
            self.transport.abort()  # not close(), which would wait until the client has read everything

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
