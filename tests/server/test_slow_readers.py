"""Claims about clients that take their answers slowly: on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from pymtp.server.http.connection import IDLE, LEAST, SLOWEST, Connection


class Client:
    """A connection, and what its client has not taken."""

    def __init__(self) -> None:
        self.unsent = 10 * 2**20
        self.is_cut = False
        self._now, self._timers = 0.0, list[Any]()

        async def app(scope: Any, receive: Any, send: Any) -> None: ...

        loop: Any = SimpleNamespace(call_later=self._call_later)
        self.connection = Connection(uvicorn.Config(app), ServerState(), {}, _loop=loop)
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def _call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        timer = SimpleNamespace(at=self._now + seconds, call=call)
        timer.cancel = lambda: timer in self._timers and self._timers.remove(timer)
        self._timers.append(timer)
        return timer

    def wait(self, seconds: float) -> None:
        """So long, in which timers go off."""
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
    """One whose whole answer is to be sent."""
    client = Client()
    client.connection.cycle = SimpleNamespace(response_complete=True)  # type: ignore[assignment]
    client.connection.pause_writing()
    return client


@pytest.mark.parametrize("taken", [0, LEAST - 1])
def test_a_client_that_takes_next_to_nothing_is_cut_off(taken: int) -> None:
    client = answered()
    client.wait(SLOWEST / 2)
    client.unsent -= taken
    client.wait(SLOWEST / 2)
    assert client.is_cut


def test_a_client_that_takes_its_answer_slowly_gets_all_of_it() -> None:
    client = answered()
    while client.unsent > 2**16:
        client.unsent -= LEAST
        client.wait(SLOWEST)
    assert not client.is_cut
    client.connection.resume_writing()
    client.wait(IDLE - 1)
    assert not client.is_cut
    client.wait(1)  # it had time enough for the rest, too
    assert client.is_cut


def test_the_time_begins_anew_when_a_client_is_slow_again() -> None:
    client = answered()
    client.wait(SLOWEST - 1)
    client.connection.resume_writing()
    client.connection.pause_writing()
    client.wait(SLOWEST - 1)
    assert not client.is_cut
    client.wait(1)
    assert client.is_cut
