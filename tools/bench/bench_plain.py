"""Compare plain decoding, pymtp and llama-bench: it shows the cost of Python at one token per step.

    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_plain.py build/0.8b-q4_0.gguf --json benchmarks/plain_decode.json

Both do the same work with the same kernels: llama-bench is built from the same sources as pymtp's native module. A
prompt of `depth` random tokens fills the cache, then `tokens` decodes of one token each are timed, at positions
depth … depth+tokens-1 of a context just long enough. Threads, layers on the GPU, cache type, flash attention and batch
sizes are equal. Loading, warm-up and prefill are not timed. llama-bench decodes random tokens and ignores the logits;
pymtp runs `LLM.generate`, which takes the argmax and detokenizes it, and reports its own figures.

Every measurement is a process of its own. They come in pairs, one of each side, in alternating order, and ratios are
computed within a pair: so a change of the machine's speed affects both alike.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import llama_bench
import typer
from peer import Comparison, Output, Pairs, Threads, errors_shown, in_a_process, show, write_json

from pymtp import LLM, SamplingParams
from pymtp.bench.table import SPREAD, Column, Spread
from pymtp.native.cores import default_threads

PEER, PYMTP = "llama-bench", "pymtp"


@dataclass(frozen=True)
class Settings:
    """Settings of both sides."""

    model: Path
    tokens: int
    depth: int
    threads: int
    gpu_layers: int
    cache_type: str
    flash_attn: str


@dataclass(frozen=True)
class Measurement:
    """The tokens/s of a side; pymtp's µs per token outside of llama.cpp, with the argmax; llama-bench's record."""

    speed: float
    python_us: float | None = None
    record: dict[str, Any] | None = None


def measure_llama_bench(program: Path, settings: Settings) -> Measurement:
    """Run llama-bench."""
    record = llama_bench.run(
        program,
        settings.model,
        n_prompt=0,
        n_gen=settings.tokens,
        n_depth=settings.depth,
        threads=settings.threads,
        n_gpu_layers=settings.gpu_layers,
        cache_type_k=settings.cache_type,
        cache_type_v=settings.cache_type,
        flash_attn=settings.flash_attn,
    )
    return Measurement(float(record["avg_ts"]), record=record)


def measure_pymtp(settings: Settings) -> Measurement:
    """Measure pymtp. Call it in a new process."""
    with LLM(
        settings.model,
        n_ctx=settings.depth + settings.tokens,
        n_threads=settings.threads,
        n_gpu_layers=settings.gpu_layers,
        type_k=settings.cache_type,
        type_v=settings.cache_type,
        flash_attn=settings.flash_attn,
        draft_tokens=0,
    ) as llm:
        tokens = random.Random(0)
        prompt = [tokens.randrange(llm.model.n_vocab) for _ in range(settings.depth)]
        llm.generate(
            prompt[:1], SamplingParams(max_tokens=2, ignore_eos=True)
        )  # the same warm-up as llama-bench: one decode
        # the prefill yields the first token; the last one is not decoded
        params = SamplingParams(max_tokens=settings.tokens + 1, ignore_eos=True)
        stats = llm.generate(prompt, params).stats
    outside = stats.decode_seconds - stats.phase_seconds["verify"]
    return Measurement(stats.decode_tokens_per_second, outside / settings.tokens * 1e6)


def main(
    model: Annotated[Path, typer.Argument(help="GGUF file, of 0.8B size to show anything.", exists=True)],
    pairs: Pairs = 10,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="Decodes that are timed.")] = 128,
    depth: Annotated[int, typer.Option("--depth", "-d", min=1, help="Tokens in the cache before.")] = 128,
    threads: Threads = None,
    gpu_layers: Annotated[int, typer.Option("--gpu-layers", "-g", help="Layers on the GPU, -1 for all.")] = -1,
    cache_type: Annotated[str, typer.Option(help="Type of the K and V cache.")] = "f16",
    flash_attn: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",
    output: Output = None,
) -> None:
    """Compare pymtp's plain decoding with llama-bench."""
    settings = Settings(model, tokens, depth, threads or default_threads(), gpu_layers, cache_type, flash_attn)
    results = Comparison[Measurement](lambda m: m.speed)
    with errors_shown():
        program = llama_bench.build()
        arms = {
            PEER: partial(measure_llama_bench, program, settings),
            PYMTP: partial(in_a_process, measure_pymtp, settings),
        }
        for _ in results.run(model.name, arms, pairs):
            pass
    outside = [m.python_us for r in results.rounds if (m := r[PYMTP]).python_us is not None]
    record = results.rounds[-1][PEER].record or {}
    speeds, ratios = results.medians(), results.ratios(PYMTP, PEER)
    title = f"{model.name}: {tokens} tokens after {depth}, {settings.threads} threads"
    column = Column("outside llama.cpp, µs/token", lambda arm: Spread.of(outside) if arm == PYMTP else None, SPREAD)
    show(results.table(title, "tokens/s", PEER, column))
    write_json(
        output,
        "plain decoding",
        settings=asdict(settings) | {"model": model.name},
        model={name: record[f"model_{name}"] for name in ("type", "size", "n_params")},
        median={
            "llama_bench_tokens_per_second": speeds[PEER],
            "pymtp_tokens_per_second": speeds[PYMTP],
            "ratio": statistics.median(ratios),
            "python_us_per_token": statistics.median(outside),
        },
        pairs=[
            {"llama_bench": peer, "pymtp": own, "python_us": us, "ratio": ratio}
            for peer, own, us, ratio in zip(results.values(PEER), results.values(PYMTP), outside, ratios, strict=True)
        ],
    )


if __name__ == "__main__":
    typer.run(main)
