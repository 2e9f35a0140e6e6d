"""`pymtp serve` as a user starts it: a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from helpers import warm as warm_starts
from helpers.servers import LONG
from helpers.warm import Program, WarmProcess

FIRST_LINES = (" starting url=http", " loading the model model=demo worker=")  # of one model, with a front or without
SMALL = ("-c", "8192", "-t", "1", "-d", "3")
ENDLESS = {
    "prompt": "def f(x):",
    "max_tokens": 8000,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


class Served:
    """A running `pymtp serve`. lines: the lines of its stderr so far."""

    def __init__(
        self,
        *options: str | Path,
        before: str = "",
        env: dict[str, str] | None = None,
        warm: bool | None = None,
        **popen: Any,
    ) -> None:
        """Start the process.

        before: Python code that it runs first. popen: keywords of subprocess.Popen.
        warm: start its processes as forks of one that has imported pymtp, on Linux without `popen`; see warm.py. None:
            if there is no `before`, whose changes the forks would inherit.
        """
        # -I imports the installed package, not the source folder of the tests.
        start = f"{before}\nfrom pymtp.cli import app_main; app_main()"
        arguments = ["serve", "--port", "0", *SMALL, *map(str, options)]
        env = {**os.environ, **(env or {})}
        self.process: WarmProcess | subprocess.Popen[str]
        if sys.platform == "linux" and not popen and (not before if warm is None else warm):
            self.process = WarmProcess(Program(start, arguments), env)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", start, *arguments],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
                **popen,
            )
        self.lines: list[str] = []
        self._ended = False  # whether stderr has ended
        self._changed = threading.Condition()  # held while lines or _ended change; those who wait need no polls
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in iter(self.process.stderr.readline, ""):
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def line(self, words: str, n: int = 1) -> str:
        """Wait for the n-th line with these words, and return it."""

        def found() -> list[str]:
            return [line for line in self.lines if words in line]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= n or self._ended, LONG)
            assert len(found()) >= n, self.lines
            return found()[n - 1]

    def ready(self) -> Served:
        """Wait until it serves."""
        self.line(" serving ")
        return self

    def field(self, name: str, n: int = 1) -> str:
        """Return a field of the n-th line that says that it serves."""
        match = re.search(rf"\b{name}=(\S+)", self.line(" serving ", n))
        assert match is not None
        return match[1]

    @property
    def url(self) -> str:
        return self.field("url")

    def worker(self, n: int = 1) -> int:
        """Return the process id of the n-th worker that served."""
        return int(self.field("worker", n))

    def get(self, path: str, **keywords: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=LONG, **keywords)

    def ask(self, **more: Any) -> httpx.Response:
        asked = {"prompt": "def f(x):", "max_tokens": 8, **more}
        return httpx.post(f"{self.url}/v1/completions", json=asked, timeout=LONG)

    @contextmanager
    def streaming(self, **more: Any) -> Iterator[Iterator[str]]:
        """Stream a long completion; yield its lines after the first one."""
        with httpx.stream("POST", f"{self.url}/v1/completions", json={**ENDLESS, **more}, timeout=LONG) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            next(lines)
            yield lines

    def metric(self, name: str) -> float:
        """Return the value of a metric with a single series."""
        (line,) = re.findall(rf"^pymtp:{name}{{.*}} (.*)$", self.get("/metrics").text, re.MULTILINE)
        return float(line)

    def end(self, *signals: signal.Signals) -> int:
        """Send signals, each after the previous one was handled, and return the exit code."""
        for i, number in enumerate(signals):
            self.process.send_signal(number)
            if i + 1 < len(signals):
                self.line("shutting down")
        return self.exit_code()

    def exit_code(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(LONG)
        self._reader.join(LONG)
        return code

    def close(self) -> None:
        self.process.kill()
        for pid in re.findall(r"\bworker=(\d+)", "".join(self.lines)):  # a failed test may leave workers behind
            if any(words in command_line(int(pid)) for words in (b"from pymtp.server.", warm_starts.__file__.encode())):
                os.kill(int(pid), signal.SIGKILL)
        self.exit_code()
        assert self.process.stderr is not None
        self.process.stderr.close()


def last_of(lines: Iterator[str]) -> dict[str, Any]:
    """Return the last chunk of a stream, which must be complete."""
    *_, last, done = lines
    assert done == "data: [DONE]"
    found: dict[str, Any] = json.loads(last.removeprefix("data: "))
    return found


def command_line(pid: int) -> bytes:
    """Return the command line of a process; b"" after its end."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def gone(pid: int) -> bool:
    """Tell whether a process has ended; a zombie has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"
