"""`pymtp serve`, started in processes of its own: for what measures and checks it from outside."""

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

START_SECONDS = 120.0  # reading a large file from a cold disk takes this long
COMMAND = "from pymtp.cli import app_main; app_main()"


class NotServedError(Exception):
    """The server did not start: what it said."""


@dataclass(frozen=True)
class Served:
    """A server that answers. pid: of the process that was started, which watches over its worker."""

    host: str
    port: int
    pid: int

    @property
    def worker(self) -> int:
        """The process that has the model. Linux only."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(children[-1])


@contextmanager
def serve(model: Path | None = None, **options: str | int | float | bool) -> Iterator[Served]:
    """A server of the file, or the shipped model, on a free port; ended at the end.

    options: of `pymtp serve`, "_" for "-"; True for a flag. Raises NotServedError when it does not start.
    """
    words = [] if model is None else ["--model", str(model)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    with tempfile.NamedTemporaryFile() as log:
        command = [sys.executable, "-c", COMMAND, "serve", "--port", "0", "--log-format", "json", *words]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            host, port = _address(process, Path(log.name))
            yield Served(host, port, process.pid)
        finally:
            process.terminate()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> tuple[str, int]:
    """Where it serves, once it does."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            said = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            if said.get("message") == "serving" and (found := re.fullmatch(r"http://(.+):(\d+)/?", said["url"])):
                return found[1], int(found[2])
        time.sleep(0.02)
    raise NotServedError(f"pymtp serve does not start:\n{log.read_text(errors='replace')[-2000:]}")
