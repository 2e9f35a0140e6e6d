"""Measure drafts: acceptance of the shipped model's head by depth and by draft vocabulary, and the cost of a draft.

    pip install . matplotlib typer
    python tools/bench/bench_drafts.py depths
    python tools/models/make_model.py qwen3.5-0.8b build/08b.gguf --type q4_0
    python tools/bench/bench_drafts.py vocabulary build/08b.gguf

Beginnings of random modules, a kind of text that the model was trained on, are continued, greedily and with a
temperature of 0.7. The counts depend on the model and the prompts alone, not on the machine's speed. `depths` writes
benchmarks/demo_model.json and .svg, `vocabulary` draft_vocab.json, which no page quotes. Its times are those of the
given model, in CPU seconds of one thread, which other load changes little: a draft in a chain of three and a token of
plain decoding, in turns; and the extra time of a step for one token that joins the vocabulary, and for a prompt of many
new tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any

import typer
from peer import screen, show, write_json
from rich.progress import track

from pymtp import LLM, SamplingParams
from pymtp.bench.plot import saved_figure
from pymtp.bench.table import Cell, Column, Table
from pymtp.context.context import Context
from pymtp.model.model import Model, demo_model
from pymtp.sampling import Sampler

from makers.new_texts import new_prompts  # isort: skip  # peer makes the folder of tests importable

OUT = Path(__file__).resolve().parents[2] / "benchmarks"
TEMPERATURES = (0.0, 0.7)
DEPTH = 3  # drafts per round where vocabularies are compared
SIZES: tuple[Any, ...] = ("all", 3072, 2048, 1024, 256)  # the shipped model has 4,096 tokens
TIMED: tuple[Any, ...] = ("all", 65536, 32768, 16384)

COLUMNS = [
    Column("temperature", "temperature"),
    Column("draft vocabulary", "draft_vocab"),
    Column("drafts", "draft_tokens"),
    Column("accepted", "acceptance_rate", ".0%"),
    Column("tokens per round", "mean_accepted_length", ".2f"),
    Column("accepted, by position", lambda row: " ".join(f"{share:.1%}" for share in row.accepted)),
    Column("outside, by position", lambda row: " ".join(f"{share:.1%}" for share in row.outside)),
]

app = typer.Typer(add_completion=False, help=__doc__)
Prompts = Annotated[int, typer.Option("--prompts", help="Number of prompts, each the beginning of a random module.")]
Tokens = Annotated[int, typer.Option(help="Most tokens for each.")]
Folder = Annotated[Path, typer.Option(help="Folder for the files.")]


def measure(n_prompts: int, max_tokens: int, temperature: float, seed: int = 0, **keywords: Any) -> dict[str, Any]:
    """Continue new prompts with the shipped model, and count its drafts.

    keywords: of LLM. Of the result, `accepted` and `outside` are, by position, the share of accepted drafts and of
    those rejected because the token is not in the draft vocabulary, out of those whose predecessors were accepted.
    """
    params = SamplingParams(max_tokens, temperature=temperature, seed=seed)
    with LLM(n_ctx=1024, n_threads=1, **keywords) as llm:
        completions = llm.generate(new_prompts(n_prompts), params)
    stats = [completion.stats for completion in completions]
    rounds, drafted, accepted = (sum(getattr(s, name) for s in stats) for name in ("rounds", "drafted", "accepted"))

    def by_position(name: str) -> list[int]:
        return [sum(sum(getattr(s, name)[i : i + 1]) for s in stats) for i in range(keywords["draft_tokens"])]

    reached = [rounds, *by_position("accepted_per_position")]
    return {
        "temperature": temperature,
        "draft_vocab": "auto",
        **keywords,
        "rounds": rounds,
        "drafted": drafted,
        "acceptance_rate": accepted / drafted,
        "mean_accepted_length": 1 + accepted / rounds,
        "accepted": [n / max(1, before) for before, n in pairwise(reached)],
        "outside": [
            n / max(1, before) for before, n in zip(reached, by_position("outside_per_position"), strict=False)
        ],
        "text_sha256": hashlib.sha256(json.dumps([c.token_ids for c in completions]).encode()).hexdigest(),
    }


def write(file: Path, bench: str, rows: list[dict[str, Any]], **parts: Any) -> None:
    """Write and show the counts of the shipped model, with further parts of the report."""
    digest = hashlib.sha256(demo_model().read_bytes()).hexdigest()
    write_json(file, bench, shipped_sha256=digest, acceptance=rows, **parts)
    notes = [f"{key}: {value}" for part in parts.values() for key, value in part.items()]
    show(Table("The shipped model's head", COLUMNS, [Cell(**row) for row in rows]), notes=notes)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot tokens per round over the depth, and the bound of a head that is always right."""
    depths = sorted({row["draft_tokens"] for row in rows})
    with saved_figure(path, 1, 1, figsize=(6, 3.4)) as panels:
        axes = panels[0][0]
        axes.plot(depths, [depth + 1 for depth in depths], color="0.75", linestyle="--", label="every draft accepted")
        for temperature in TEMPERATURES:
            lengths = [row["mean_accepted_length"] for row in rows if row["temperature"] == temperature]
            axes.plot(depths, lengths, marker="o", label=f"T = {temperature}" if temperature else "greedy")
        axes.axhline(1, color="0.75", linewidth=1, label="no drafts")
        axes.set(xlabel="drafts per round", ylabel="tokens per round", ylim=(0, None))
        axes.legend()


@app.command()
def depths(
    n_prompts: Prompts = 60,
    max_tokens: Tokens = 250,
    max_depth: Annotated[int, typer.Option(help="Depths from 1 to this.")] = 8,
    folder: Folder = OUT,
) -> None:
    """Measure acceptance and tokens per round at each depth, and write benchmarks/demo_model.{json,svg}."""
    runs = [(temperature, depth) for temperature in TEMPERATURES for depth in range(1, max_depth + 1)]
    rows = [
        measure(n_prompts, max_tokens, temperature, draft_tokens=depth)
        for temperature, depth in track(runs, console=screen)
    ]
    plot(rows, folder / "demo_model.svg")
    write(folder / "demo_model.json", "acceptance of the shipped model", rows)


@app.command()
def vocabulary(
    model: Annotated[Path, typer.Argument(help="GGUF file with a vocabulary of 131,072 tokens or more.")],
    n_prompts: Prompts = 60,
    max_tokens: Tokens = 250,
    repeats: Annotated[int, typer.Option(help="Measurements of each time.")] = 15,
    folder: Folder = OUT,
) -> None:
    """Measure drafting over a part of the vocabulary, and write benchmarks/draft_vocab.json."""
    runs = [(temperature, size) for temperature in TEMPERATURES for size in SIZES]
    rows = [
        measure(n_prompts, max_tokens, temperature, seed=3, draft_tokens=DEPTH, draft_vocab=size)
        for temperature, size in track(runs, console=screen)
    ]
    times = measure_times(model, repeats)
    write(folder / "draft_vocab.json", "drafts from a part of the vocabulary", rows, times=times)


def cpu(call: Callable[..., object], *arguments: Any) -> float:
    """Return the CPU milliseconds of a call."""
    start = process_time()
    call(*arguments)
    return 1e3 * (process_time() - start)


def measure_times(path: Path, repeats: int) -> dict[str, Any]:
    """Measure times of one thread. Return medians in CPU milliseconds."""
    took = defaultdict(list)
    with Model(path) as model:
        contexts = {}
        for size in TIMED:
            c = contexts[size] = Context(model, n_ctx=4096, n_threads=1, draft_tokens=DEPTH, draft_vocab=size)
            c.set_sampling(Sampler(SamplingParams()))
            c.prefill(range(1, 65))
            c.draft_chain(c.first_token(), DEPTH)
        for _ in track(range(repeats), console=screen):
            for size, c in contexts.items():
                took["step", size].append(cpu(c.draft_chain, 5, DEPTH) / DEPTH)
                took["plain", "all"].append(cpu(c.verify_chain, [5]))
                c.draft_chain(5, DEPTH)  # lets the target's token join the set, untimed
        c = contexts[32768]
        high = iter(range(model.n_vocab - 30_000, model.n_vocab))
        for _ in range(repeats):
            c.prefill([5])
            c.draft_chain(5, 1)
            without = cpu(c.draft_chain, 5, 1)
            c.prefill([next(high)])
            took["join", 32768].append(cpu(c.draft_chain, 5, 1) - without)
        for _ in range(5):
            c.clear()
            c.prefill([next(high) for _ in range(600)])
            took["prompt", 32768].append(cpu(c.draft_chain, 5, 1) - without)
    plain = median(took["plain", "all"])
    return {
        "model": path.name,
        "plain_ms": plain,
        "steps": [
            {"draft_vocab": size, "ms": median(took["step", size]), "of_plain": median(took["step", size]) / plain}
            for size in TIMED
        ],
        "a_token_joins_ms": median(took["join", 32768]),
        "all_rows_anew_ms": median(took["prompt", 32768]),
    }


if __name__ == "__main__":
    app()
