"""Compare plain decoding, pymtp and llama-bench: it shows the cost of Python at one token per step.

    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_plain.py build/0.8b-q4_0.gguf -o json > benchmarks/plain_decode.json

Both do the same work with the same kernels: llama-bench is built from the same sources as pymtp's native module. A
prompt of `depth` random tokens fills the cache, then `tokens` decodes of one token each are timed, at positions
depth … depth+tokens-1 of a context just long enough. Threads, layers on the GPU, cache type, flash attention and batch
sizes are equal. Loading, warm-up and prefill are not timed. llama-bench decodes random tokens and ignores the logits;
pymtp runs `LLM.generate`, which takes the argmax and detokenizes it, and reports its own figures.

Every measurement is a process of its own. They come in pairs, one of each side, in alternating order, and ratios are
computed within a pair: so a change of the machine's speed affects both alike.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from llama_bench import build, run
from llama_build import BuildError
from rich.console import Console
from rich.table import Table

from pymtp import LLM, PymtpError, SamplingParams, build_info
from pymtp.native.cores import default_threads

screen = Console(stderr=True, highlight=False)


class Output(str, Enum):
    """The format of the result."""

    table = "table"
    json = "json"
    md = "md"


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
class Pair:
    """The tokens/s of both sides, and pymtp's µs per token outside of llama.cpp, with the argmax."""

    llama_bench: float
    pymtp: float
    python_us: float

    @property
    def ratio(self) -> float:
        return self.pymtp / self.llama_bench


def measure_llama_bench(program: Path, settings: Settings) -> dict[str, Any]:
    """Run llama-bench. Return its record; "avg_ts" is the tokens/s."""
    return run(
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


def measure_pymtp(settings: Settings) -> tuple[float, float]:
    """Measure pymtp. Return its tokens/s, and its µs per token outside of llama.cpp. Call it in a new process."""
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
    return stats.decode_tokens_per_second, outside / settings.tokens * 1e6


def measure(settings: Settings, pairs: int) -> tuple[list[Pair], dict[str, Any]]:
    """Measure pairs in alternating order. Return them, and llama-bench's last record. Print the progress on stderr."""
    program = build()
    spawn = multiprocessing.get_context("spawn")
    results = []
    for number in range(pairs):
        if number % 2 == 0:
            record = measure_llama_bench(program, settings)
        with spawn.Pool(1) as pool:
            speed, python_us = pool.apply(measure_pymtp, (settings,))
        if number % 2 == 1:
            record = measure_llama_bench(program, settings)
        results.append(Pair(float(record["avg_ts"]), speed, python_us))
        pair = results[-1]
        screen.print(
            f"pair {number + 1} of {pairs}: llama-bench {pair.llama_bench:.2f}/s, pymtp {pair.pymtp:.2f}/s, "
            f"ratio {pair.ratio:.4f}"
        )
    return results, record


def rows(pairs: Sequence[Pair]) -> list[tuple[str, str, str, str, str]]:
    """Return the lines of the table: name, median, lowest, quartiles, highest."""
    figures: list[tuple[str, str, list[float]]] = [
        ("llama-bench, tokens/s", ".2f", [pair.llama_bench for pair in pairs]),
        ("pymtp, tokens/s", ".2f", [pair.pymtp for pair in pairs]),
        ("ratio of a pair", ".4f", [pair.ratio for pair in pairs]),
        ("pymtp outside llama.cpp, µs/token", ".0f", [pair.python_us for pair in pairs]),
    ]
    lines = []
    for name, digits, values in figures:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        spread = (f"{min(values):{digits}}", f"{low:{digits}} … {high:{digits}}", f"{max(values):{digits}}")
        lines.append((name, f"{middle:{digits}}", *spread))
    return lines


HEADINGS = ("", "median", "lowest", "middle half", "highest")


def as_markdown(pairs: Sequence[Pair]) -> str:
    """Format the table as Markdown."""
    lines = [HEADINGS, ("---", *["---:"] * 4), *rows(pairs)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_json(settings: Settings, pairs: Sequence[Pair], record: dict[str, Any]) -> str:
    """Format all measurements, the medians, settings and environment as JSON."""
    machine = {"system": platform.platform(), "cpu": record["cpu_info"], "gpu": record["gpu_info"]}
    model = {name: record[f"model_{name}"] for name in ("type", "size", "n_params")}
    medians = {
        "llama_bench_tokens_per_second": statistics.median(pair.llama_bench for pair in pairs),
        "pymtp_tokens_per_second": statistics.median(pair.pymtp for pair in pairs),
        "ratio": statistics.median(pair.ratio for pair in pairs),
        "python_us_per_token": statistics.median(pair.python_us for pair in pairs),
    }
    result = {
        "bench": "plain decoding",
        "settings": asdict(settings) | {"model": settings.model.name},
        "model": model,
        "median": medians,
        "pairs": [asdict(pair) | {"ratio": pair.ratio} for pair in pairs],
        "machine": machine | {"python": platform.python_version()},
        "build": build_info(),
    }
    return json.dumps(result, indent=2)


def show(settings: Settings, pairs: Sequence[Pair]) -> None:
    """Print the table."""
    title = f"{settings.model.name}: {settings.tokens} tokens after {settings.depth}, {settings.threads} threads"
    table = Table(*HEADINGS, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in rows(pairs):
        table.add_row(*line)
    Console(highlight=False).print(table)


def main(
    model: Annotated[Path, typer.Argument(help="GGUF file, of 0.8B size to show anything.", exists=True)],
    pairs: Annotated[int, typer.Option("--pairs", "-r", min=2, help="Measurements of each kind.")] = 10,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="Decodes that are timed.")] = 128,
    depth: Annotated[int, typer.Option("--depth", "-d", min=1, help="Tokens in the cache before.")] = 128,
    threads: Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")] = None,
    gpu_layers: Annotated[int, typer.Option("--gpu-layers", "-g", help="Layers on the GPU, -1 for all.")] = -1,
    cache_type: Annotated[str, typer.Option(help="Type of the K and V cache.")] = "f16",
    flash_attn: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print the result.")] = Output.table,
) -> None:
    """Compare pymtp's plain decoding with llama-bench."""
    settings = Settings(model, tokens, depth, threads or default_threads(), gpu_layers, cache_type, flash_attn)
    try:
        results, record = measure(settings, pairs)
    except (BuildError, PymtpError, subprocess.CalledProcessError) as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)
    if output is Output.json:
        print(as_json(settings, results, record))
    elif output is Output.md:
        print(as_markdown(results))
    else:
        show(settings, results)


if __name__ == "__main__":
    typer.run(main)
