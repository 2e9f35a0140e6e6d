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

from helpers.servers import LONG, wait_until

SMALL = ("-c", "8192", "-t", "1", "-d", "3")
ENDLESS = {
    "prompt": "def f(x):",
    "max_tokens": 8000,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


class Served:
    """A server that runs. `lines`: what it wrote to stderr so far."""

    def __init__(self, *options: str | Path, before: str = "", env: dict[str, str] | None = None, **popen: Any) -> None:
        """before: Python that its process runs first. popen: of subprocess.Popen."""
        # -I: the installed package, not the source folder that the tests may be run beside
        start = f"{before}\nfrom pymtp.cli import app_main; app_main()"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", start, "serve", "--port", "0", *SMALL, *map(str, options)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            **popen,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += iter(self.process.stderr.readline, "")

    def line(self, words: str, n: int = 1) -> str:
        """The n-th line with these words, once it is there."""

        def found() -> list[str]:
            return [line for line in list(self.lines) if words in line]

        wait_until(lambda: len(found()) >= n or not self._reader.is_alive())
        assert len(found()) >= n, self.lines
        return found()[n - 1]

    def ready(self) -> Served:
        """Once it serves."""
        self.line(" serving ")
        return self

    def field(self, name: str, n: int = 1) -> str:
        """Of the line that says that it serves, for the n-th time."""
        match = re.search(rf"\b{name}=(\S+)", self.line(" serving ", n))
        assert match is not None
        return match[1]

    @property
    def url(self) -> str:
        return self.field("url")

    def worker(self, n: int = 1) -> int:
        """The process id of the n-th that served."""
        return int(self.field("worker", n))

    def get(self, path: str, **keywords: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=LONG, **keywords)

    def ask(self, **more: Any) -> httpx.Response:
        asked = {"prompt": "def f(x):", "max_tokens": 8, **more}
        return httpx.post(f"{self.url}/v1/completions", json=asked, timeout=LONG)

    @contextmanager
    def streaming(self, **more: Any) -> Iterator[Iterator[str]]:
        """The lines of a stream that does not end by itself for long; the first of them has come."""
        with httpx.stream("POST", f"{self.url}/v1/completions", json={**ENDLESS, **more}, timeout=LONG) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            next(lines)
            yield lines

    def metric(self, name: str) -> float:
        """The value of a metric that has one."""
        (line,) = re.findall(rf"^pymtp:{name}{{.*}} (.*)$", self.get("/metrics").text, re.MULTILINE)
        return float(line)

    def end(self, *signals: signal.Signals) -> int:
        """Sends signals, one after the other was taken, and returns the exit code."""
        for i, number in enumerate(signals):
            self.process.send_signal(number)
            if i + 1 < len(signals):
                self.line("ending")
        return self.exit_code()

    def exit_code(self) -> int:
        """Once it has ended."""
        code = self.process.wait(LONG)
        self._reader.join(LONG)
        return code

    def close(self) -> None:
        self.process.kill()
        for pid in re.findall(r"\bworker=(\d+)", "".join(self.lines)):  # left behind where a test failed
            if b"pymtp.server.process.worker" in command_line(int(pid)):
                os.kill(int(pid), signal.SIGKILL)
        self.exit_code()
        assert self.process.stderr is not None
        self.process.stderr.close()


def last_of(lines: Iterator[str]) -> dict[str, Any]:
    """The last chunk of a stream that ends as it should."""
    *_, last, done = lines
    assert done == "data: [DONE]"
    found: dict[str, Any] = json.loads(last.removeprefix("data: "))
    return found


def command_line(pid: int) -> bytes:
    """Nothing of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def gone(pid: int) -> bool:
    """Whether a process has ended, even if nobody has taken its exit code."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"
