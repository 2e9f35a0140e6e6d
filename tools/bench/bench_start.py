"""Seconds from `pymtp serve` to its first answer of any kind, to the first of /health with 200, and to the first token.

python tools/bench/bench_start.py
python tools/bench/bench_start.py -n 20 --drafts 3,auto -- -m MODEL.gguf -s 8
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def status(port: int) -> int | None:
    """Return the status of /health; None while the server does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=LIMIT) as answer:
            code: int = answer.status
            return code
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def wait_for_first_token(port: int) -> None:
    """Request a completion, and return after its first token."""
    body = json.dumps({"prompt": "def fibonacci(n):", "max_tokens": 16, "stream": True, "temperature": 0})
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        if not answer.readline().startswith(b"data: {"):
            raise SystemExit("the first line of a stream is no token")


def start(options: list[str]) -> dict[str, float]:
    """Return the seconds to the first answer, to the first 200, and to the first token of a completion after it."""
    port, first = free_port(), None
    started = time.perf_counter()
    server = subprocess.Popen([*PYMTP, "--port", str(port), *options], stderr=subprocess.PIPE, text=True)
    try:
        while (seconds := time.perf_counter() - started) < LIMIT:
            code = status(port)
            if code is not None and first is None:
                first = time.perf_counter() - started
            if code == 200 and first is not None:
                ok = time.perf_counter() - started
                wait_for_first_token(port)
                return {"any_answer": first, "health_ok": ok, "first_token": time.perf_counter() - started}
            if server.poll() is not None:
                raise SystemExit(f"the server ended: {server.communicate()[1]}")
            time.sleep(0.005)
        raise SystemExit(f"not up after {seconds:.0f} s")
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


def main(
    options: Annotated[list[str] | None, typer.Argument(help="Of `pymtp serve`, after --.")] = None,
    runs: Annotated[int, typer.Option("-n", min=1, help="Starts of each kind, after one that is not counted.")] = 9,
    drafts: Annotated[str, typer.Option(help="Values of --draft-tokens, in turn; the first is the baseline.")] = (
        "auto"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print all seconds as one JSON object.")] = False,
) -> None:
    kinds = drafts.split(",")
    start(["--draft-tokens", kinds[0], *(options or [])])  # loads the files into memory
    starts: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for run in range(runs):
        for kind in kinds if run % 2 else reversed(kinds):
            starts[kind].append(start(["--draft-tokens", kind, *(options or [])]))
    if as_json:
        print(json.dumps(starts))
        return
    for kind, runs_of_kind in starts.items():
        for name in runs_of_kind[0]:
            seconds, base = ([run[name] for run in runs_of] for runs_of in (runs_of_kind, starts[kinds[0]]))
            middle = statistics.median(seconds)
            print(
                f"{kind}: {name}: median {middle:.2f} s, {min(seconds):.2f} to {max(seconds):.2f} s, "
                f"{middle / statistics.median(base):.3f} of -d {kinds[0]}"
            )


if __name__ == "__main__":
    typer.run(main)
