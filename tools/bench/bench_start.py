"""Seconds from `pymtp serve` to its first answer of any kind, to the first of /health with 200, and to the first token.

python tools/bench/bench_start.py
python tools/bench/bench_start.py -n 20 --drafts 3,auto -- -m MODEL.gguf -s 8
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import urllib.error
import urllib.request
from typing import Annotated

import typer
from serving import free_port, served

PYMTP = (sys.executable, "-I", "-c", "from pymtp.cli import app_main; app_main()", "serve")
LIMIT = 300.0  # seconds


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
    port, seconds, started = free_port(), dict[str, float](), time.perf_counter()

    def ready(log: str) -> bool | None:
        code = status(port)
        if code is not None:
            seconds.setdefault("any_answer", time.perf_counter() - started)
        return True if code == 200 else None

    with served([*PYMTP, "--port", str(port), *options], ready, poll_seconds=0.005):
        seconds["health_ok"] = time.perf_counter() - started
        wait_for_first_token(port)
        return seconds | {"first_token": time.perf_counter() - started}


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
