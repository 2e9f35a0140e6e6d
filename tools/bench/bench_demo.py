"""Measure the shipped model's head: acceptance and tokens per round at each depth, on held-out text.

    pip install . matplotlib typer
    python tools/bench/bench_demo.py

Pieces of held-out standard library source are continued, greedily and with a temperature of 0.7. The counts depend on
the model and the prompts alone, not on the machine's speed. Writes benchmarks/demo_model.json and .svg.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import typer
from peer import count_drafts, held_out_prompts, screen, show, write_json
from rich.progress import track

from pymtp.bench.plot import saved_figure
from pymtp.bench.table import Cell, Column, Table
from pymtp.model.model import demo_model

TEMPERATURES = (0.0, 0.7)
OUT = Path(__file__).resolve().parents[2] / "benchmarks"
COLUMNS = [
    Column("temperature", "temperature"),
    Column("drafts", "draft_tokens"),
    Column("accepted", "acceptance_rate", ".0%"),
    Column("tokens per round", "mean_accepted_length", ".2f"),
    Column("by position", lambda row: " ".join(f"{share:.0%}" for share in row.accepted_per_position)),
]


def measure(prompts: list[str], depth: int, temperature: float, max_tokens: int) -> dict[str, Any]:
    """Count rounds and drafts over all prompts at one depth."""
    counts = count_drafts(prompts, max_tokens, temperature, draft_tokens=depth)
    rounds, drafted, accepted = counts["rounds"], counts["drafted"], counts["accepted"]
    return {
        "temperature": temperature,
        "draft_tokens": depth,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted,
        "mean_accepted_length": 1 + accepted / rounds,
        "accepted_per_position": [n / rounds for n in counts["by_position"]],
    }


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


def main(
    n_prompts: Annotated[int, typer.Option("--prompts", help="Held-out prompts.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Tokens for each.")] = 250,
    max_depth: Annotated[int, typer.Option(help="Depths from 1 to this.")] = 8,
    folder: Annotated[Path, typer.Option(help="Folder for demo_model.json and .svg.")] = OUT,
) -> None:
    """Measure the shipped model's head and write benchmarks/demo_model.{json,svg}."""
    prompts = held_out_prompts(n_prompts)
    runs = [(depth, temperature) for temperature in TEMPERATURES for depth in range(1, max_depth + 1)]
    rows = [measure(prompts, *run, max_tokens) for run in track(runs, console=screen)]
    digest = hashlib.sha256(demo_model().read_bytes()).hexdigest()
    settings = {"model_sha256": digest, "prompts": n_prompts, "max_tokens": max_tokens}
    write_json(folder / "demo_model.json", "acceptance of the shipped model", **settings, runs=rows)
    plot(rows, folder / "demo_model.svg")
    show(Table("The shipped model's head", COLUMNS, [Cell(**row) for row in rows]))


if __name__ == "__main__":
    typer.run(main)
