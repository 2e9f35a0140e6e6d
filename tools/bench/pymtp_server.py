"""`pymtp serve` in a process of its own, for benches and checks over HTTP."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving import NotServedError as NotServedError
from serving import served

COMMAND = (sys.executable, "-I", "-c", "from pymtp.cli import app_main; app_main()")


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
def serve(
    model: Path | None = None, command: Sequence[str] = COMMAND, **options: str | int | float | bool
) -> Iterator[RunningServer]:
    """Start a server with a file, or the shipped model, on a free port, and stop it at the end.

    command: starts `pymtp`, such as the program of another build.
    options: of `pymtp serve`, with "_" for "-", and True for a flag. Raises NotServedError if it does not start.
    """
    words = [] if model is None else ["--model", str(model)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    with served([*command, "serve", "--port", "0", "--log-format", "json", *words], _address) as (pid, address):
        yield RunningServer(*address, pid)


def _address(log: str) -> tuple[str, int] | None:
    """Return the host and the port that the log of a server names."""
    for line in log.splitlines():
        entry = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
        if entry.get("message") == "serving" and (match := re.fullmatch(r"http://(.+):(\d+)/?", entry["url"])):
            return match[1], int(match[2])
    return None
