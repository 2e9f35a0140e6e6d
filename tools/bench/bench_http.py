"""Measure the cost of HTTP: tokens/s of streaming clients, relative to the same requests without HTTP.

    pip install '.[server]'
    python tools/bench/bench_http.py demo:8:1500
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_http.py build/0.8b-q4_0.gguf:8:64

A case is MODEL:CLIENTS:TOKENS:TEMPERATURE, where "demo" is the shipped model and TEMPERATURE may be left out: greedy.
One side is `pymtp serve` with so many clients that stream /v1/chat/completions or /v1/completions at once. The clients
are one loop over their sockets in a process of its own, which stores the answers and parses them afterwards. The other
side is one call of LLM.generate with all prompts, in a process of its own. Both sides use draft_tokens="auto", the same
threads and context, and no prefix cache. The measured time goes from the first byte sent, or the call, to the end of
the last text, with the prefill.

Every measurement is a new server or process, warmed up with as many requests. Each round has one measurement of each
arm, in alternating order, and ratios are computed within a round.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Literal

import typer
from http_clients import completion_tokens, send_all, texts_of
from peer import (
    WARM_UP,
    Case,
    Comparison,
    Output,
    Pairs,
    Threads,
    errors_shown,
    held_out_prompts,
    in_a_process,
    show,
    write_json,
)
from pymtp_server import serve

from pymtp.bench.table import Column
from pymtp.chat import Chat
from pymtp.native.cores import default_threads

Api = Literal["chat", "completions"]
PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
ENGINE = "engine"
FILTERS = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}  # the defaults of the APIs and of SamplingParams differ
PROMPT_CHARACTERS = 160
PROMPT_TOKENS = 128  # at most


@dataclass(frozen=True)
class Measurement:
    """The measurement of one arm. speed: tokens/s of all requests. texts: their hash. chunks, bytes: of all answers."""

    speed: float
    tokens: int
    seconds: float
    texts: str
    chunks: int = 0
    bytes: int = 0


def prompts_of(case: Case) -> list[str]:
    """Return one prompt for each client."""
    return [text[:PROMPT_CHARACTERS] for text in held_out_prompts(case.requests)]


def measure_engine(case: Case, api: Api) -> Measurement:
    """Measure a run without HTTP. Call it in a new process."""
    texts = prompts_of(case)
    prompts = [Chat([{"role": "user", "content": text}]) for text in texts] if api == "chat" else texts
    completions, seconds = case.run_llm(case.model, prompts, {"ignore_eos": True, **FILTERS})
    n_tokens = sum(len(completion.token_ids) for completion in completions)
    return Measurement(n_tokens / seconds, n_tokens, seconds, hashed([completion.text for completion in completions]))


def measure_http(case: Case, api: Api) -> Measurement:
    """Measure a run of a server with clients in this process."""
    warm_up, contents = bodies(case, api, WARM_UP), bodies(case, api, case.tokens)
    options = {"ctx": case.n_ctx, "n_seq_max": case.requests, "threads": case.threads, "cache": 0}
    with serve(case.model, **options) as server:
        send_all(server.host, server.port, warm_up, PATHS[api])
        started = time.perf_counter()
        answers = send_all(server.host, server.port, contents, PATHS[api])
        seconds = time.perf_counter() - started
    n_tokens = sum(map(completion_tokens, answers))
    chunks = sum(len(re.findall(rb"^data: \{", answer, re.MULTILINE)) for answer in answers)
    texts = hashed([texts_of(answer) for answer in answers])
    return Measurement(n_tokens / seconds, n_tokens, seconds, texts, chunks, sum(map(len, answers)))


def bodies(case: Case, api: Api, n: int) -> list[bytes]:
    """Return the request bodies of all clients."""
    shared = {"model": "m", "max_tokens": n, "temperature": case.temperature, "ignore_eos": True, **FILTERS}
    shared |= {"stream": True, "stream_options": {"include_usage": True}}
    texts = prompts_of(case)
    prompts: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": text}]} if api == "chat" else {"prompt": text} for text in texts
    ]
    return [json.dumps({**prompt, "seed": seed, **shared}).encode() for seed, prompt in enumerate(prompts)]


def hashed(texts: Sequence[str]) -> str:
    return sha256(json.dumps(texts).encode()).hexdigest()


def measure(case: Case, n: int) -> Comparison[Measurement]:
    """Measure n rounds of all arms.

    Raises ValueError if the texts of the chat API differ from those of the engine, which gets the same prompts.
    """
    arms = {ENGINE: partial(in_a_process, measure_engine, case, "chat")}
    arms |= {api: partial(measure_http, case, api) for api in PATHS}
    results = Comparison[Measurement](lambda m: m.speed)
    for measured in results.run(str(case), arms, n):
        if measured["chat"].texts != measured[ENGINE].texts:
            raise ValueError("the chat API has other texts than the engine")
    return results


def main(
    cases: Annotated[list[str], typer.Argument(help="MODEL:CLIENTS:TOKENS[:TEMPERATURE]", show_default=False)],
    pairs: Pairs = 5,
    threads: Threads = None,
    output: Output = None,
) -> None:
    """Compare streaming clients with the engine without HTTP."""
    written = []
    with errors_shown():
        for case in [Case.read(text, PROMPT_TOKENS, threads or default_threads()) for text in cases]:
            results = measure(case, pairs)
            chunks = results.medians(lambda m: m.tokens / m.chunks if m.chunks else 0)
            column = Column("tokens a chunk", lambda arm, chunks=chunks: chunks[arm] or None, ".1f")  # type: ignore[misc]
            show(results.table(str(case), "tokens/s", ENGINE, column))
            ratios = {arm: results.ratios(arm, ENGINE) for arm in PATHS}
            found = {"median_tokens_per_second": results.medians(), "ratios": ratios}
            found["median_ratio"] = {arm: statistics.median(values) for arm, values in ratios.items()}
            written.append(asdict(case) | {"model": case.model.name} | found | {"rounds": results.as_dicts()})
            write_json(output, "HTTP", cases=written)  # after each case, so that no result is lost


if __name__ == "__main__":
    typer.run(main)
