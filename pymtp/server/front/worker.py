"""The worker process of one model: started and ended by the front, which talks HTTP with it over a private socket."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from pymtp.server.front.pooled_model import Description
from pymtp.server.front.proxy import fetch
from pymtp.server.metrics.logs import log
from pymtp.server.process.listener import BACKLOG
from pymtp.server.process.model_source import ModelSource
from pymtp.server.process.supervisor import KILL_DELAY, MAX_TICK, SILENCE_TIMEOUT, WorkerProcess, exit_text
from pymtp.server.process.worker_config import CARD, FILE, HEAD, PROJECTOR, READY, WorkerConfig
from pymtp.server.settings import ServerSettings

# What the front asks a worker that is ready, to tell it later without a request to the worker
ANSWERS = {"/props": "GET", "/api/tags": "GET", "/api/show": "POST"}
KEEPALIVE = 60.0  # seconds that an idle connection to a worker is kept; the worker closes it after IDLE_TIMEOUT
_numbers = count()


class ModelWorker:
    """A worker process of a model. Must be made, and used, in the event loop.

    transport: sends requests to the worker. headers: those of the front's own requests.
    description: what the worker tells of its model, once it is ready: see ANSWERS.
    """

    def __init__(self, source: ModelSource, config: WorkerConfig, folder: Path) -> None:
        """Start the process.

        source: remembers the files of a model of the hub.
        config: the config of the worker.
        folder: the folder of the socket, which only this user can enter.

        Raises OSError if the system has no memory or no process for it.
        """
        self._source, self._grace, self._loop = source, config.settings.grace, asyncio.get_running_loop()
        self._path = folder / f"{next(_numbers)}.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._path))
            listener.listen(BACKLOG)
            try:
                # on this thread: a worker ends with the thread that started it (PR_SET_PDEATHSIG)
                self._process = WorkerProcess([listener], config)
            except OSError:
                self._path.unlink()
                raise
        self.transport = httpx.AsyncHTTPTransport(
            uds=str(self._path),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEPALIVE),
        )
        self.headers = own_headers(config.settings)
        self.description = Description({}, {})
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._silence, self._heard = 0.0, False
        self._tick: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._process.control.fileno(), self._read)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.process.pid

    async def ready(self) -> None:
        """Wait until the model is loaded. Raises the error of a load that failed."""
        either: set[asyncio.Future[Any]] = {self._ready, self._ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._process.error is not None:
            raise self._process.error
        if not self._ready.done():
            raise OSError(f"the worker ended before it was ready, with {self._ended.result()}")
        self._check_later()
        answers = {path: await fetch(self, path, method) for path, method in ANSWERS.items()}
        self.description = replace(self.description, answers=answers)

    async def ended(self) -> str:
        """Wait until the process has ended, and return its exit code in words."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Tell the worker to refuse new requests and to end after the running ones."""
        if not self._ended.done():
            self._process.process.terminate()

    async def stop(self) -> None:
        """End the process, and return when it has ended. Requests that still run get the grace."""
        self.terminate()
        await asyncio.wait({self._ended}, timeout=self._grace + KILL_DELAY)
        if not self._ended.done():
            self._process.process.kill()
            await self._ended
        await self.transport.aclose()
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        """Handle the messages that have arrived from the worker, and its end."""
        self._heard = True
        messages: list[dict[str, Any]] = self._process.read_messages()
        for message in messages:
            if READY in message:
                self._source.note_loaded(message[FILE], message.get(HEAD), message.get(PROJECTOR))
                self.description = replace(self.description, card=message[CARD])
                if not self._ready.done():
                    self._ready.set_result(None)
        if self._process.has_exited:
            self._loop.remove_reader(self._process.control.fileno())
            if self._tick is not None:
                self._tick.cancel()
            if self._process.ready_time is None and not self._ended.done():
                self._source.note_failed()
            ending = self._loop.create_task(asyncio.to_thread(self._process.end))
            ending.add_done_callback(lambda done: self._ended.set_result(exit_text(done.result())))

    def _check_later(self) -> None:
        self._heard = False
        self._tick = self._loop.call_later(MAX_TICK, self._check)

    def _check(self) -> None:
        """Kill the worker if it has been silent for too long."""
        self._silence = 0.0 if self._heard else self._silence + MAX_TICK
        if self._silence >= SILENCE_TIMEOUT:
            log.error("the worker has not answered for %g s and is killed; its stacks follow", SILENCE_TIMEOUT)
            self._process.process.send_signal(signal.SIGABRT)
            self._tick = self._loop.call_later(KILL_DELAY, self._kill)
            return
        self._check_later()

    def _kill(self) -> None:
        with suppress(OSError, subprocess.SubprocessError):
            self._process.process.kill()


def own_headers(settings: ServerSettings) -> list[tuple[bytes, bytes]]:
    """Return the headers of a front's own requests: a key, if the server has keys, and an id for the worker's log."""
    keys = [(b"authorization", b"Bearer " + key.encode()) for key in settings.api_keys[:1]]
    return [(b"x-request-id", b"front"), *keys]


def private_config(config: WorkerConfig, number: int) -> WorkerConfig:
    """Return the config of a worker behind a front, which has checked hosts, origins and the size of bodies.

    Keys stay, because prefixes are kept apart by key.

    number: tells apart the models of a front; ids of stored responses contain it.
    """
    private = replace(
        config.settings,
        cors_origins=(),
        allowed_hosts=("*",),
        page=False,
        replica=f"m{number}",
        max_body_bytes=2**40,
        max_bodies_bytes=None,
        grace=math.ceil(config.settings.grace),
    )
    return replace(config, settings=private, behind_front=True)
