"""Measure sampling from a vocabulary by filters: milliseconds per token on one thread, without a model.

    python tools/bench/bench_draw.py

It uses two rows of logits: one with few likely tokens, as from a model, and one of pure noise.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from pymtp import SamplingParams
from pymtp.sampling import Logits, Sampler

FILTERS: list[dict[str, Any]] = [
    {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 0, "top_p": 0.95, "min_p": 0.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.05},
]


def rows(n_vocab: int) -> dict[str, Logits]:
    ids = np.random.default_rng(0)
    likely = ids.normal(0, 2.2, n_vocab).astype(np.float32)
    likely[ids.integers(0, n_vocab, 40)] += ids.uniform(4, 14, 40).astype(np.float32)
    return {"few likely": likely, "all alike": ids.normal(0, 1, n_vocab).astype(np.float32)}


def milliseconds(row: Logits, filters: dict[str, Any], n: int) -> float:
    """Return the milliseconds of the fastest of n samples."""
    sampler = Sampler(SamplingParams(temperature=1.0, seed=1, **filters))
    fastest = float("inf")
    for position in range(n):
        started = time.perf_counter()
        sampler.sample(row, position)
        fastest = min(fastest, time.perf_counter() - started)
    return 1e3 * fastest


def main(
    n_vocab: Annotated[int, typer.Option("--vocab", min=1, help="Tokens of the vocabulary.")] = 248_320,
    draws: Annotated[int, typer.Option("--draws", "-n", min=1, help="Samples of each kind.")] = 100,
) -> None:
    """Time sampling."""
    lines = Table("filters", *rows(1), title=f"{n_vocab} tokens, milliseconds a draw")
    for filters in FILTERS:
        shown = ", ".join(f"{name} {value}" for name, value in filters.items())
        lines.add_row(shown, *(f"{milliseconds(row, filters, draws):.3f}" for row in rows(n_vocab).values()))
    Console(highlight=False).print(lines)


if __name__ == "__main__":
    typer.run(main)
