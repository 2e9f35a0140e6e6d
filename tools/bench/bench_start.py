"""Seconds from `pymtp serve` to the first answer of /health with 200, and to its first answer of any kind.

python tools/bench/bench_start.py
python tools/bench/bench_start.py -n 20 -- -m MODEL.gguf -s 8
"""

from __future__ import annotations

import json
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Annotated

import typer

PYMTP = (sys.executable, "-I", "-c", "from pymtp.cli import app_main; app_main()", "serve")
LIMIT = 300.0  # seconds


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def status(port: int) -> int | None:
    """Of /health; None while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=LIMIT) as answer:
            found: int = answer.status
            return found
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def start(options: list[str]) -> tuple[float, float]:
    """Seconds to the first answer, and to the first that is 200."""
    port, first = free_port(), None
    begun = time.perf_counter()
    server = subprocess.Popen([*PYMTP, "--port", str(port), *options], stderr=subprocess.PIPE, text=True)
    try:
        while (seconds := time.perf_counter() - begun) < LIMIT:
            found = status(port)
            if found is not None and first is None:
                first = time.perf_counter() - begun
            if found == 200 and first is not None:
                return first, time.perf_counter() - begun
            if server.poll() is not None:
                raise SystemExit(f"the server ended: {server.communicate()[1]}")
            time.sleep(0.005)
        raise SystemExit(f"not up after {seconds:.0f} s")
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


def main(
    options: Annotated[list[str] | None, typer.Argument(help="Of `pymtp serve`, after --.")] = None,
    runs: Annotated[int, typer.Option("-n", min=1, help="Starts, after one that does not count.")] = 9,
    as_json: Annotated[bool, typer.Option("--json", help="Print all seconds as one JSON object.")] = False,
) -> None:
    start(options or [])  # brings files into memory
    found = [start(options or []) for _ in range(runs)]
    seconds = {"any_answer": [first for first, _ in found], "health_ok": [ok for _, ok in found]}
    if as_json:
        print(json.dumps(seconds))
        return
    for name, each in seconds.items():
        print(f"{name}: median {statistics.median(each):.2f} s, {min(each):.2f} to {max(each):.2f} s")


if __name__ == "__main__":
    typer.run(main)
