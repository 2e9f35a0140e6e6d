"""Tests of clients that read their response slowly, with a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from pymtp.server.http.connection import IDLE_TIMEOUT, MIN_WRITTEN_BYTES, WRITE_TIMEOUT, HttpProtocol


class Client:
    """A client with its connection, on a fake clock. unsent: the number of bytes that the client has not read."""

    def __init__(self) -> None:
        self.unsent = 10 * 2**20
        self.is_cut = False
        self._now, self._timers = 0.0, list[Any]()

        async def app(scope: Any, receive: Any, send: Any) -> None: ...

        loop: Any = SimpleNamespace(call_later=self._call_later)
        self.connection = HttpProtocol(uvicorn.Config(app), ServerState(), {}, _loop=loop)
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def _call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        timer = SimpleNamespace(at=self._now + seconds, call=call)
        timer.cancel = lambda: timer in self._timers and self._timers.remove(timer)
        self._timers.append(timer)
        return timer

    def wait(self, seconds: float) -> None:
        """Advance the clock, and run the timers that are due."""
        end = self._now + seconds
        while due := [timer for timer in self._timers if timer.at <= end]:
            timer = min(due, key=lambda each: each.at)
            self._timers.remove(timer)
            self._now = timer.at
            timer.call()
        self._now = end

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_cut = True

    def is_closing(self) -> bool:
        return True

    def get_extra_info(self, _: str) -> None: ...


def answered() -> Client:
    """Return a client that has not read its response yet; the server has written the whole response."""
    client = Client()
    client.connection.cycle = SimpleNamespace(response_complete=True)  # type: ignore[assignment]
    client.connection.pause_writing()
    return client


@pytest.mark.parametrize("taken", [0, MIN_WRITTEN_BYTES - 1])
def test_stalled_client_is_disconnected(taken: int) -> None:
    client = answered()
    client.wait(WRITE_TIMEOUT / 2)
    client.unsent -= taken
    client.wait(WRITE_TIMEOUT / 2)
    assert client.is_cut


def test_slow_client_gets_the_whole_response() -> None:
    client = answered()
    while client.unsent > 2**16:
        client.unsent -= MIN_WRITTEN_BYTES
        client.wait(WRITE_TIMEOUT)
    assert not client.is_cut
    client.connection.resume_writing()
    client.wait(IDLE_TIMEOUT - 1)
    assert not client.is_cut
    client.wait(1)  # the idle timeout
    assert client.is_cut


def test_write_timeout_restarts_when_the_send_buffer_fills_again() -> None:
    client = answered()
    client.wait(WRITE_TIMEOUT - 1)
    client.connection.resume_writing()
    client.connection.pause_writing()
    client.wait(WRITE_TIMEOUT - 1)
    assert not client.is_cut
    client.wait(1)
    assert client.is_cut
