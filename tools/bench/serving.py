"""Servers in processes of their own: started, waited for, and stopped."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

START_SECONDS = 300.0  # timeout: reading a large file from a cold disk takes long


class NotServedError(Exception):
    """The server did not start. The message is its output."""


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def served(
    command: Sequence[str | Path], ready: Callable[[str], T | None], poll_seconds: float = 0.02
) -> Iterator[tuple[int, T]]:
    """Start a server, provide its process id and the result of `ready`, and stop it at the end.

    ready: called with the server's output so far, until it returns something else than None.

    Raises NotServedError if the server ends or is not ready in time.
    """
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while True:
                output = Path(log.name).read_text(errors="replace")
                if (result := ready(output)) is not None:
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NotServedError(f"{Path(command[0]).name} does not start:\n{output[-2000:]}")
                time.sleep(poll_seconds)
            yield process.pid, result
        finally:
            process.terminate()
            process.wait()
