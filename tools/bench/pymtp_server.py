"""`pymtp serve` in a process of its own, for benches and checks over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 120.0  # timeout: reading a large file from a cold disk takes long
COMMAND = "from pymtp.cli import app_main; app_main()"


class NotServedError(Exception):
    """The server did not start. The message is its output."""


@dataclass(frozen=True)
class RunningServer:
    """A server that answers. pid: of the supervisor process."""

    host: str
    port: int
    pid: int

    @property
    def worker(self) -> int:
        """Return the id of the worker process, which holds the model. Linux only."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(children[-1])


@contextmanager
def serve(model: Path | None = None, **options: str | int | float | bool) -> Iterator[RunningServer]:
    """Start a server with a file, or the shipped model, on a free port, and stop it at the end.

    options: of `pymtp serve`, with "_" for "-", and True for a flag. Raises NotServedError if it does not start.
    """
    words = [] if model is None else ["--model", str(model)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    with tempfile.NamedTemporaryFile() as log:
        command = [sys.executable, "-c", COMMAND, "serve", "--port", "0", "--log-format", "json", *words]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            host, port = _address(process, Path(log.name))
            yield RunningServer(host, port, process.pid)
        finally:
            process.terminate()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> tuple[str, int]:
    """Wait until the server answers. Return its host and port."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            entry = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            if entry.get("message") == "serving" and (match := re.fullmatch(r"http://(.+):(\d+)/?", entry["url"])):
                return match[1], int(match[2])
        time.sleep(0.02)
    raise NotServedError(f"pymtp serve does not start:\n{log.read_text(errors='replace')[-2000:]}")
