"""Plain prefill and decoding, pymtp against llama-bench of the same build, for tools/gpu/gpu_bench.py: one pair a call.

Both sides are processes of their own that load the model, warm up with the same work and are then timed once: a prompt,
and as many tokens after it, one by one. Which side comes first alternates with the turn.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from gpu_plan import FULL, PEER, SMOKE, Job
from gpu_results import Results

from pymtp import LLM, SamplingParams, build_info
from pymtp.bench.machine import machine
from pymtp.native.cores import default_threads

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import llama_bench

ALL_LAYERS = 999
CACHE_TYPE = "f16"


def of_pymtp(model: Path, prompt: int, tokens: int, gpu_layers: int, threads: int) -> dict[str, float]:
    """Tokens a second of both. To be run in a process of its own."""
    numbers = random.Random(0)
    with LLM(
        model,
        n_ctx=prompt + tokens + 1,
        n_threads=threads,
        n_gpu_layers=gpu_layers,
        draft_tokens=0,
        type_k=CACHE_TYPE,
        type_v=CACHE_TYPE,
    ) as llm:
        params = SamplingParams(max_tokens=tokens + 1, ignore_eos=True)  # the prompt brings the first one
        for _ in range(2):
            given = numbers.choices(range(llm.model.n_vocab), k=prompt)
            stats = llm.generate(given, params).stats
    return {"prefill": stats.prefill_tokens_per_second, "decode": stats.decode_tokens_per_second}


def of_llama_bench(
    program: Path, model: Path, prompt: int, tokens: int, gpu_layers: int, threads: int
) -> dict[str, float]:
    """The same of llama-bench."""
    same: dict[str, str | int] = {
        "threads": threads,
        "n_gpu_layers": ALL_LAYERS if gpu_layers < 0 else gpu_layers,
        "cache_type_k": CACHE_TYPE,
        "cache_type_v": CACHE_TYPE,
        "flash_attn": "auto",
    }
    read = llama_bench.run(program, model, n_prompt=prompt, n_gen=0, n_depth=0, **same)
    written = llama_bench.run(program, model, n_prompt=0, n_gen=tokens, n_depth=prompt, **same)
    return {"prefill": float(read["avg_ts"]), "decode": float(written["avg_ts"])}


def main(
    model: Annotated[Path, typer.Argument(help="GGUF file.")],
    key: Annotated[str, typer.Argument(help="The model's key in the plan.")],
    folder: Annotated[Path, typer.Argument(help="Results.")],
    program: Annotated[Path, typer.Option(help="llama-bench.")],
    turn: Annotated[int, typer.Option()] = 0,
    smoke: Annotated[bool, typer.Option("--smoke")] = False,
    gpu_layers: Annotated[int, typer.Option()] = -1,
) -> None:
    """Add a pair to the report."""
    scale, results, job = SMOKE if smoke else FULL, Results(folder), Job(key, PEER, turn=turn)
    work = (model, scale.peer, scale.tokens, gpu_layers, scale.threads or default_threads())
    results.begin(job)
    started = time.monotonic()

    def ours() -> dict[str, float]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(of_pymtp, work)

    def theirs() -> dict[str, float]:
        return of_llama_bench(program, *work)

    try:
        sides = {"pymtp": ours, "llama_bench": theirs}
        names = list(sides) if turn % 2 == 0 else [*reversed(sides)]
        pair: dict[str, Any] = {name: sides[name]() for name in names}
    except subprocess.CalledProcessError as error:
        results.end(job, time.monotonic() - started, str(error))
        raise
    pair["ratio"] = {what: pair["pymtp"][what] / pair["llama_bench"][what] for what in ("prefill", "decode")}
    name = f"peer-{key}.json"
    before = results.read(name)
    report = {
        "bench": PEER,
        "settings": {"model": model.name, "prompt": scale.peer, "tokens": scale.tokens, "cache_type": CACHE_TYPE},
        "machine": machine(),
        "build": build_info(),
        "pairs": [*(before["pairs"] if before else []), pair],
    }
    results.write(name, json.dumps(report, indent=1))
    results.end(job, time.monotonic() - started)


if __name__ == "__main__":
    typer.run(main)
