"""Measure the shipped model's head: acceptance and tokens per round at each depth, on held-out text.

    pip install . matplotlib typer
    python tools/bench/bench_demo.py

Pieces of held-out standard library source are continued, greedily and with a temperature of 0.7. The counts depend on
the model and the prompts alone, not on the machine's speed. Writes benchmarks/demo_model.json and .svg.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import pymtp
from pymtp.model.model import demo_model

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "pymtp"  # so that the same figure makes the same file
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402

TEMPERATURES = (0.0, 0.7)
OUT = Path(__file__).resolve().parents[2] / "benchmarks"


def measure(prompts: list[str], depth: int, temperature: float, max_tokens: int) -> dict[str, Any]:
    """Count rounds and drafts over all prompts at one depth."""
    params = pymtp.SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=True)
    with pymtp.LLM(n_ctx=1024, n_threads=1, draft_tokens=depth) as llm:
        completions = llm.generate(prompts, params)
    stats = [completion.stats for completion in completions]
    rounds, drafted, accepted = (sum(getattr(s, name) for s in stats) for name in ("rounds", "drafted", "accepted"))
    positions = [
        sum(s.accepted_per_position[i] for s in stats if i < len(s.accepted_per_position)) for i in range(depth)
    ]
    return {
        "temperature": temperature,
        "draft_tokens": depth,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted,
        "mean_accepted_length": 1 + accepted / rounds,
        "accepted_per_position": [n / rounds for n in positions],
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot tokens per round over the depth, and the bound of a head that is always right."""
    depths = sorted({row["draft_tokens"] for row in rows})
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    axes.plot(depths, [depth + 1 for depth in depths], color="0.75", linestyle="--", label="every draft accepted")
    for temperature in TEMPERATURES:
        lengths = [row["mean_accepted_length"] for row in rows if row["temperature"] == temperature]
        axes.plot(depths, lengths, marker="o", label=f"T = {temperature}" if temperature else "greedy")
    axes.axhline(1, color="0.75", linewidth=1, label="no drafts")
    axes.set(xlabel="drafts per round", ylabel="tokens per round", ylim=(0, None))
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main(
    n_prompts: Annotated[int, typer.Option("--prompts", help="Held-out prompts.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Tokens for each.")] = 250,
    max_depth: Annotated[int, typer.Option(help="Depths from 1 to this.")] = 8,
) -> None:
    """Measure the shipped model's head and write benchmarks/demo_model.{json,svg}."""
    prompts = held_out_prompts(n_prompts)
    runs = [(depth, temperature) for temperature in TEMPERATURES for depth in range(1, max_depth + 1)]
    rows = [measure(prompts, *run, max_tokens) for run in track(runs, console=Console(stderr=True))]
    result = {
        "model_sha256": hashlib.sha256(demo_model().read_bytes()).hexdigest(),
        "build": pymtp.build_info(),
        "prompts": n_prompts,
        "max_tokens": max_tokens,
        "runs": rows,
    }
    OUT.mkdir(exist_ok=True)
    (OUT / "demo_model.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(rows, OUT / "demo_model.svg")
    table = Table("temperature", "drafts", "accepted", "tokens per round", "by position")
    for row in rows:
        by_position = " ".join(f"{share:.0%}" for share in row["accepted_per_position"])
        length = f"{row['mean_accepted_length']:.2f}"
        table.add_row(
            str(row["temperature"]), str(row["draft_tokens"]), f"{row['acceptance_rate']:.0%}", length, by_position
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
