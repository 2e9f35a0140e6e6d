"""Prefill and decoding without drafts, pymtp against llama-bench of the same build: one pair per call.

tools/gpu/gpu_bench.py starts it. Each side is a process of its own, which loads the model, warms up with the same work
and is timed once: a prompt, and tokens after it, one by one. The order of the sides alternates with the turn.
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


def measure_pymtp(model: Path, prompt: int, tokens: int, gpu_layers: int, threads: int) -> dict[str, float]:
    """Return the tokens/s of prefill and decoding. Call it in a new process."""
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
        params = SamplingParams(max_tokens=tokens + 1, ignore_eos=True)  # the first token comes from the prefill
        for _ in range(2):
            tokens_of_prompt = numbers.choices(range(llm.model.n_vocab), k=prompt)
            stats = llm.generate(tokens_of_prompt, params).stats
    return {"prefill": stats.prefill_tokens_per_second, "decode": stats.decode_tokens_per_second}


def measure_llama_bench(
    program: Path, model: Path, prompt: int, tokens: int, gpu_layers: int, threads: int
) -> dict[str, float]:
    """Return the tokens/s of llama-bench for prefill and decoding."""
    options: dict[str, str | int] = {
        "threads": threads,
        "n_gpu_layers": ALL_LAYERS if gpu_layers < 0 else gpu_layers,
        "cache_type_k": CACHE_TYPE,
        "cache_type_v": CACHE_TYPE,
        "flash_attn": "auto",
    }
    prefill = llama_bench.run(program, model, n_prompt=prompt, n_gen=0, n_depth=0, **options)
    decode = llama_bench.run(program, model, n_prompt=0, n_gen=tokens, n_depth=prompt, **options)
    return {"prefill": float(prefill["avg_ts"]), "decode": float(decode["avg_ts"])}


def main(
    model: Annotated[Path, typer.Argument(help="GGUF file.")],
    key: Annotated[str, typer.Argument(help="The model's key in the plan.")],
    folder: Annotated[Path, typer.Argument(help="Results.")],
    program: Annotated[Path, typer.Option(help="llama-bench.")],
    turn: Annotated[int, typer.Option()] = 0,
    smoke: Annotated[bool, typer.Option("--smoke")] = False,
    gpu_layers: Annotated[int, typer.Option()] = -1,
) -> None:
    """Measure a pair, and add it to the report."""
    scale, results, job = SMOKE if smoke else FULL, Results(folder), Job(key, PEER, turn=turn)
    work = (model, scale.peer, scale.tokens, gpu_layers, scale.threads or default_threads())
    results.begin(job)
    started = time.monotonic()

    def pymtp_speeds() -> dict[str, float]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(measure_pymtp, work)

    def llama_bench_speeds() -> dict[str, float]:
        return measure_llama_bench(program, *work)

    try:
        sides = {"pymtp": pymtp_speeds, "llama_bench": llama_bench_speeds}
        names = list(sides) if turn % 2 == 0 else [*reversed(sides)]
        pair: dict[str, Any] = {name: sides[name]() for name in names}
    except subprocess.CalledProcessError as error:
        results.end(job, time.monotonic() - started, str(error))
        raise
    pair["ratio"] = {kind: pair["pymtp"][kind] / pair["llama_bench"][kind] for kind in ("prefill", "decode")}
    name = f"peer-{key}.json"
    earlier = results.read(name)
    report = {
        "bench": PEER,
        "settings": {"model": model.name, "prompt": scale.peer, "tokens": scale.tokens, "cache_type": CACHE_TYPE},
        "machine": machine(),
        "build": build_info(),
        "pairs": [*(earlier["pairs"] if earlier else []), pair],
    }
    results.write(name, json.dumps(report, indent=1))
    results.end(job, time.monotonic() - started)


if __name__ == "__main__":
    typer.run(main)
