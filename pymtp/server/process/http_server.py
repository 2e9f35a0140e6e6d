"""The HTTP server of the worker: uvicorn on the listening socket, with messages to the supervisor."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from pymtp import errors
from pymtp.errors import PymtpError
from pymtp.llm import LLM
from pymtp.server.app import create_app
from pymtp.server.http.connection import EXTRA_CONNECTIONS, IDLE_TIMEOUT, HttpProtocol
from pymtp.server.http.waited import WaitedMiddleware
from pymtp.server.info import model_card
from pymtp.server.metrics.logs import log
from pymtp.server.process.worker_config import CARD, FAILED, FILE, HEAD, HEARTBEAT, PROJECTOR, READY, encode_message
from pymtp.server.settings import ServerSettings

HEARTBEAT_SECONDS = 2  # seconds between two heartbeats
SHUTDOWN_MARGIN = 2  # seconds after the grace in which clients of aborted requests still get an error
MAX_CONNECTIONS = 4096  # an idle connection takes 5 to 9 KiB of memory
RESERVED_FILES = EXTRA_CONNECTIONS + 256  # open files that the connection limit leaves for other uses


def max_connections(files_each: int = 1) -> int:
    """Return the highest number of connections. Also raises the limit of open files of this process.

    The number is below MAX_CONNECTIONS if the system's hard limit of open files is too low.

    files_each: the open files that a connection takes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MAX_CONNECTIONS * files_each + RESERVED_FILES
    if hard != resource.RLIM_INFINITY:
        files = min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(16, (files - RESERVED_FILES) // files_each)


class HttpServer:
    """The application on uvicorn. It sends the supervisor messages: READY, HEARTBEAT, or FAILED if loading failed."""

    def __init__(
        self,
        settings: ServerSettings,
        load: Callable[[], LLM],
        control: socket.socket,
        *,
        behind_front: bool = False,
    ) -> None:
        """load: loads the model, or raises an exception.

        control: the socket to the supervisor.
        behind_front: whether all requests come from a front, whose headers X-Forwarded-For and WAITED_HEADER are
            trusted.
        """
        self._control = control
        self._app = create_app(settings, load, self._loaded)
        if behind_front:
            self._app.add_middleware(WaitedMiddleware)
        self._server = new_server(self._app, settings, self._heartbeat, trusted_proxies="*" if behind_front else None)

    def serve(self, listeners: list[socket.socket]) -> None:
        """Serve until SIGTERM; then wait for the running requests, at most for the grace, and return."""
        self._server.run(listeners)

    def _loaded(self, error: Exception | None) -> None:
        if error is None:
            service = self._app.state.service
            if service.sampling:
                log.info("default sampling parameters", extra={"fields": service.sampling})
            llm = service.llm.llm
            model = llm.model
            card = model_card(service.facts, service.model_name).model_dump()
            paths = {FILE: str(model.path), HEAD: model.head, PROJECTOR: llm.mmproj}
            self._send({READY: service.model_name, **paths, CARD: card})
            return
        if not isinstance(error, (PymtpError, OSError)):
            log.error("the model cannot be loaded", exc_info=error)
        known_errors = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        self._send({FAILED: next(known_errors, ""), "message": str(error)})
        self._server.end()

    async def _heartbeat(self) -> None:
        """Send a heartbeat if the server is ready.

        Earlier heartbeats could fill the buffer of the socket, and the READY message would be lost.
        """
        if self._app.state.service is not None:
            self._send({HEARTBEAT: True})

    def _send(self, message: dict[str, Any]) -> None:
        send_message(self._control, message)


def send_message(control: socket.socket, message: dict[str, Any]) -> None:
    """Send a message to the supervisor, unless it does not read them."""
    with suppress(OSError):  # the supervisor is stopped and the buffer is full, or the supervisor has ended
        control.send(encode_message(message), socket.MSG_DONTWAIT)


def new_server(
    app: FastAPI,
    settings: ServerSettings,
    heartbeat: Callable[[], Coroutine[Any, Any, None]],
    *,
    trusted_proxies: str | None = None,
    files_each: int = 1,
) -> _UvicornServer:
    """Make the uvicorn server of an application.

    heartbeat: called at each tick.
    trusted_proxies: the addresses whose X-Forwarded-For is trusted, None for uvicorn's default.
    files_each: the open files that a connection takes.
    """
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="none",
        limit_concurrency=max_connections(files_each),
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=trusted_proxies,
        timeout_keep_alive=int(IDLE_TIMEOUT),
        timeout_graceful_shutdown=math.ceil(settings.grace) + SHUTDOWN_MARGIN,
        timeout_notify=0,  # call callback_notify at each tick
        callback_notify=heartbeat,
    )
    return _UvicornServer(config, app, settings.grace)


class _UvicornServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: FastAPI, grace: float) -> None:
        super().__init__(config)
        self._state, self._grace = app.state, grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exit = asyncio.Event()

    async def main_loop(self) -> None:
        """Replace uvicorn's loop of ten ticks per second by one tick per heartbeat, so that an idle server sleeps."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._exit.wait(), HEARTBEAT_SECONDS)

    def end(self) -> None:
        """End `main_loop`. Signal handlers may call this method."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._exit.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGTERM or SIGINT: refuse new requests, and end `main_loop`.

        If the model is still being loaded, the process exits at once.
        """
        self._state.ending = True
        self.end()
        if self._state.service is None:
            os._exit(0)  # loading a model cannot be cancelled, and there is no request to wait for

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Extend uvicorn's shutdown: requests that still run after the grace are aborted, and end with an error."""
        uvicorn.server.logger.addFilter(_is_not_of_the_grace)
        if self._state.service is not None:
            self._state.refuse()
            asyncio.get_running_loop().call_later(self._grace, self._abort)
        await super().shutdown(sockets)

    def _abort(self) -> None:
        if self._state.abort is None:
            return
        if self.server_state.tasks:
            fields = {"requests": len(self.server_state.tasks)}
            log.warning("the grace is over: running requests are cancelled", extra={"fields": fields})
        self._state.abort()


def _is_not_of_the_grace(record: logging.LogRecord) -> bool:
    """Return whether a line of uvicorn's log is not that about tasks it cancels, which `_abort` has told already."""
    return not str(record.msg).startswith("Cancel %s running task")
