"""What tests of the server share: one that listens, and a way to make others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.served import Served
from helpers.servers import Server

from pymtp.server.settings import Settings


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The shipped model with four places, for all tests that leave it as it was."""
    server = Server().ready()
    yield server
    server.close()


@pytest.fixture
def new_server() -> Iterator[Callable[..., Server]]:
    """Makes servers, of Settings' keywords, Server's and `llm={…}`, that are closed after the test."""
    made: list[Server] = []

    def make(*, llm: dict[str, Any] | None = None, **keywords: Any) -> Server:
        own = {name: keywords.pop(name) for name in ("load", "on_loaded", "most_connections") if name in keywords}
        made.append(Server(Settings(**keywords), **own, **(llm or {})))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts `pymtp serve` with options; all are killed after the test."""
    made: list[Served] = []

    def start(*options: str | Path, **keywords: Any) -> Served:
        made.append(Served(*options, **keywords))
        return made[-1]

    yield start
    for served in made:
        served.close()
