"""Servers that listen on a port, on a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import fastapi.routing
import httpx
import uvicorn
from conftest import make_llm

from pymtp import LLM
from pymtp.server.app import create_app
from pymtp.server.http.connection import HttpProtocol
from pymtp.server.settings import ServerSettings

LONG = 30.0  # seconds until a test fails that waits

# The first request to each server would make validators of all answers anew, which takes 65 ms.
fastapi.routing.create_model_field = cache(fastapi.routing.create_model_field)


class Server:
    """A server of the shipped model on a free port. llm: its LLM."""

    def __init__(
        self,
        settings: ServerSettings | None = None,
        load: Callable[[], LLM] | None = None,
        on_loaded: Callable[[Exception | None], object] = lambda _: None,
        max_connections: int | None = None,
        **llm: Any,
    ) -> None:
        """Start the server. llm: keywords of the LLM. load: creates the LLM instead. on_loaded: see create_app."""
        self.settings = settings or ServerSettings()
        keywords = {"n_ctx": 4096, "n_seq_max": 4, "n_batch": 512} | llm
        self.app = create_app(self.settings, load or (lambda: make_llm(**keywords)), on_loaded)
        self._socket = socket.socket()
        # Otherwise the system buffers 4 MiB (net.ipv4.tcp_wmem) for a client that does not read
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = self.settings.api_keys[0] if self.settings.api_keys else "none"
        config = uvicorn.Config(
            self.app,
            http=HttpProtocol,
            limit_concurrency=max_connections,
            log_level="warning",
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()

    @property
    def llm(self) -> LLM:
        found: LLM = self.app.state.service.llm.llm
        return found

    @property
    def n_unfinished(self) -> int:
        """Return the number of completions that run or wait."""
        found: int = self.app.state.service.n_unfinished
        return found

    def ready(self) -> Server:
        """Wait until the server answers."""
        wait_until(self._is_up)
        return self

    def _is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=LONG).status_code == 200
        except httpx.ConnectError:
            return False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the server."""
        (server,) = self._server.servers
        return server.get_loop()

    @property
    def n_connections(self) -> int:
        """Return the number of open connections."""
        return len(self._server.server_state.connections)

    def free(self) -> bool:
        """Tell whether nothing runs or waits."""
        figures = self.llm.figures()
        return (self.n_unfinished, figures.running, figures.waiting) == (0, 0, 0)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(LONG)
        assert not self._thread.is_alive()


def wait_until(ready: Callable[[], object]) -> None:
    """Wait until a condition holds, and fail after LONG seconds."""
    end = time.monotonic() + LONG
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.002)
