"""Measure the start of `pymtp serve`: seconds to the first answer of /health with 200, and to the first token.

python tools/bench/bench_start.py
python tools/bench/bench_start.py --model MODEL.gguf -n 20 --drafts 3,auto --n-seq-max 8
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from http_clients import completion_tokens, send_all
from llama_server import is_ready
from peer import Comparison, ModelFile, Output, show, write_json
from pymtp_server import serve

from pymtp.bench.table import SPREAD, Column, Spread

BODY = {"model": "m", "prompt": "def fibonacci(n):", "max_tokens": 1, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Start:
    """The seconds of a start until /health answered with 200, and until the first token of a request after it."""

    ready: float
    first_token: float


def start(model: Path | None, drafts: str, n_seq_max: int) -> Start:
    """Start a server, and request one token once it is ready."""
    body = json.dumps({**BODY, "stream": True, "stream_options": {"include_usage": True}}).encode()
    started = time.perf_counter()
    with serve(model, draft_tokens=drafts, n_seq_max=n_seq_max) as server:
        while not is_ready(f"http://{server.host}:{server.port}"):
            time.sleep(0.005)
        ready = time.perf_counter() - started
        (answer,) = send_all(server.host, server.port, [body], "/v1/completions")
        seconds = time.perf_counter() - started
    completion_tokens(answer)  # raises ValueError for an error in place of a token
    return Start(ready, seconds)


def main(
    model: ModelFile = None,
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Starts of each kind.")] = 9,
    drafts: Annotated[str, typer.Option(help="Values of --draft-tokens; the first is the baseline.")] = "auto",
    n_seq_max: Annotated[int, typer.Option("--n-seq-max", "-s", min=1, help="Requests at once.")] = 4,
    output: Output = None,
) -> None:
    """Measure the start of a server."""
    arms = {number: partial(start, model, number, n_seq_max) for number in drafts.split(",")}
    next(iter(arms.values()))()  # loads the files into memory
    results = Comparison[Start](lambda s: s.ready)
    for _ in results.run("seconds until ready", arms, runs):
        pass
    first = Column("first token, s", lambda arm: Spread.of(results.values(arm, lambda s: s.first_token)), SPREAD)
    show(results.table("pymtp serve --draft-tokens", "ready, s", next(iter(arms)), first))
    write_json(output, "start of the server", rounds=results.as_dicts())


if __name__ == "__main__":
    typer.run(main)
