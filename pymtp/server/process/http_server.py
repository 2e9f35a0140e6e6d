"""uvicorn on a socket that listens already, and what its process says to the supervisor."""

from __future__ import annotations

import asyncio
import math
import os
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from pymtp import errors
from pymtp.errors import PymtpError
from pymtp.llm import LLM
from pymtp.server.app import create_app
from pymtp.server.http.connection import IDLE, MORE, Connection
from pymtp.server.metrics.logs import log
from pymtp.server.process.launch import BEAT, FAILED, FILE, HEAD, READY, line
from pymtp.server.settings import Settings

BEATS = 2  # seconds between two
TO_TELL = 2  # seconds, on top of the grace, for clients to hear that their requests are ended
MOST_CONNECTIONS = 4096  # idle ones take 5 to 9 KiB each
OTHER_FILES = MORE + 256


def most_connections() -> int:
    """How many there may be: fewer where the system lets this process open few files. From now on it may open as many
    as they need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_CONNECTIONS + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        files = min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(16, files - OTHER_FILES)


class HttpServer:
    """The application on a socket. The supervisor hears when it serves, that it lives, and why it cannot."""

    def __init__(self, settings: Settings, load: Callable[[], LLM], control: socket.socket) -> None:
        """load: the model; it may raise."""
        self._control = control
        self._app = create_app(settings, load, self._loaded)
        self._server = _Server(
            uvicorn.Config(
                self._app,
                http=Connection,
                ws="none",
                limit_concurrency=most_connections(),
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=int(IDLE),
                timeout_graceful_shutdown=math.ceil(settings.grace) + TO_TELL,
                timeout_notify=0,  # with each tick
                callback_notify=self._beat,
            ),
            self._app,
            settings.grace,
        )

    def serve(self, listener: socket.socket) -> None:
        """Until SIGTERM, and until what runs then has ended, within the grace."""
        self._server.run([listener])

    def _loaded(self, error: Exception | None) -> None:
        if error is None:
            service = self._app.state.service
            if service.sampling:
                log.info("sampling where a request leaves it open", extra={"fields": service.sampling})
            model = service.llm.llm.model
            self._say({READY: service.model_name, FILE: str(model.path), HEAD: model.head})
            return
        if not isinstance(error, (PymtpError, OSError)):
            log.error("the model cannot be loaded", exc_info=error)
        known = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        self._say({FAILED: next(known, ""), "message": str(error)})
        self._server.end()

    async def _beat(self) -> None:
        """Not before it serves: until then nobody listens for beats, and what is said next must find room."""
        if self._app.state.service is not None:
            self._say({BEAT: True})

    def _say(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # it is stopped, or gone
            self._control.send(line(message), socket.MSG_DONTWAIT)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: FastAPI, grace: float) -> None:
        super().__init__(config)
        self._state, self._grace = app.state, grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends = asyncio.Event()

    async def main_loop(self) -> None:
        """As uvicorn's, with a tick for each beat: its ten a second take processor time from what runs beside."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ends.wait(), BEATS)

    def end(self) -> None:
        """Ends `main_loop`. From a signal handler, too."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ends.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Once or several times."""
        self._state.ending = True
        self.end()
        if self._state.service is None:
            os._exit(0)  # a model that is being loaded cannot be called back, and nobody waits for an answer

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's. Clients whose requests outlast the grace hear of it."""
        if self._state.service is not None:
            asyncio.get_running_loop().call_later(self._grace, self._state.service.llm.llm.cancel)
        await super().shutdown(sockets)
