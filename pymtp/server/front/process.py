"""The process of a front, which the supervisor starts: an HTTP server, and the workers of the models."""

from __future__ import annotations

import asyncio
import faulthandler
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from pymtp import errors
from pymtp.errors import PymtpError
from pymtp.server.errors import UnavailableError
from pymtp.server.front.app import create_front_app
from pymtp.server.front.config import FrontConfig
from pymtp.server.front.folder import remove_sockets
from pymtp.server.front.launch import Launcher, memory_limits
from pymtp.server.front.pool import LOAD_WAIT, ModelPool
from pymtp.server.front.worker import ModelWorker
from pymtp.server.metrics import logs
from pymtp.server.process.http_server import new_server, send_message
from pymtp.server.process.worker import exit_with_supervisor
from pymtp.server.process.worker_config import FAILED, FILE, HEAD, HEARTBEAT, READY


def run_front(control: socket.socket, message: Mapping[str, Any]) -> None:
    """Serve until SIGTERM.

    control: the socket to the supervisor.
    message: the first message of the supervisor, which has the config of the front.
    """
    exit_with_supervisor(control)
    faulthandler.enable()
    config = FrontConfig.from_json(message)
    logs.configure(config.settings.log_format, config.settings.log_level)
    folder = Path(config.folder)
    remove_sockets(folder)  # a front that was killed has left them
    _Front(control, config, folder).serve([socket.socket(fileno=file) for file in message["listeners"]])


class _Front:
    def __init__(self, control: socket.socket, config: FrontConfig, folder: Path) -> None:
        self._control, self._config = control, config
        limits = memory_limits(config)
        self._launcher = launcher = Launcher(config, limits, folder)
        self._pool = ModelPool[ModelWorker](
            launcher.models,
            launcher.launch,
            launcher.plan,
            launcher.describe,
            limits=limits,
            strict=config.models_memory is not None,
            models_max=config.models_max,
            idle_seconds=config.idle_seconds,
            autoload=config.autoload,
            load_wait=min(LOAD_WAIT, config.settings.request_timeout or LOAD_WAIT),
            any_name=len(config.models) == 1 and not config.models[0].settings.served_names,
        )
        self._app = create_front_app(config.settings, self._pool, self._lifespan)
        # a request takes a connection to its client, and one to its worker
        self._server = new_server(self._app, config.settings, self._heartbeat, files_each=2)

    def serve(self, listeners: list[socket.socket]) -> None:
        """Serve until SIGTERM; then wait for the running requests, at most for the grace, and return."""
        self._server.run(listeners)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(self._start())
        yield
        starting.cancel()
        await self._pool.close()

    async def _start(self) -> None:
        """Tell the supervisor that the front serves. A single model is loaded first, so that a wrong one is told."""
        models = self._pool.models
        if len(models) == 1:
            try:
                async with self._pool.use(models[0]):
                    pass
            except UnavailableError as error:
                cause = error.__cause__ or error
                known = (kind.__name__ for kind in type(cause).__mro__ if kind.__module__ == errors.__name__)
                send_message(self._control, {FAILED: next(known, ""), "message": str(cause)})
                self._server.end()
                return
        send_message(self._control, {READY: ", ".join(model.name for model in models), FILE: "", HEAD: None})
        for model in models:
            if self._launcher.is_here(model):
                with suppress(PymtpError):  # told when the model is asked for
                    await self._pool.describe(model)  # which also plans it, so that the first request need not wait

    async def _heartbeat(self) -> None:
        send_message(self._control, {HEARTBEAT: True})
