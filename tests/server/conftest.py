"""Fixtures of the server's tests: a shared server, and factories of further servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.picture_files import picture
from helpers.served import Served
from helpers.servers import Server
from makers.make_mmproj import make_mmproj

from pymtp.server.settings import ServerSettings


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Serve the shipped model with four slots, for all tests that do not change its state."""
    server = Server().ready()
    yield server
    server.close()


@pytest.fixture(scope="session")
def seeing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve the shipped model with a projector of random weights, and with a folder of images: see media_path."""
    folder = tmp_path_factory.mktemp("media")
    (folder / "red.png").write_bytes(picture())
    projector = make_mmproj("demo", tmp_path_factory.mktemp("projector") / "mmproj.gguf")
    server = Server(ServerSettings(media_path=str(folder)), mmproj=str(projector)).ready()
    yield server
    server.close()


@pytest.fixture
def new_server() -> Iterator[Callable[..., Server]]:
    """Return a factory of servers, which are closed after the test.

    Its keywords are those of ServerSettings and Server, and `llm` for the keyword arguments of LLM.
    """
    made: list[Server] = []

    def make(*, llm: dict[str, Any] | None = None, **keywords: Any) -> Server:
        own = {name: keywords.pop(name) for name in ("load", "on_loaded", "max_connections") if name in keywords}
        made.append(Server(ServerSettings(**keywords), **own, **(llm or {})))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Return a function that starts `pymtp serve` with options; the processes are killed after the test."""
    made: list[Served] = []

    def start(*options: str | Path, **keywords: Any) -> Served:
        made.append(Served(*options, **keywords))
        return made[-1]

    yield start
    for served in made:
        served.close()
