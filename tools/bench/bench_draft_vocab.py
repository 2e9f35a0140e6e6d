"""Measure the cost and the gain of drafting over a part of the vocabulary.

    python tools/models/make_model.py qwen3.5-0.8b build/08b.gguf --type q4_0
    python tools/bench/bench_draft_vocab.py build/08b.gguf

Acceptance is that of the shipped model on held-out text: counts, the same on every machine. Times are those of the
given model, in CPU seconds of one thread, which other load changes little: a draft in a chain of three and a token of
plain decoding, in turns; and the extra time of a step for one token that joins the set, and for a prompt of many new
tokens. Writes benchmarks/draft_vocab.json.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any

import typer
from peer import count_drafts, held_out_prompts, screen, show, write_json
from rich.progress import track

from pymtp.bench.table import Cell, Column, Table
from pymtp.context.context import Context
from pymtp.model.model import Model, demo_model
from pymtp.sampling import Sampler, SamplingParams

OUT = Path(__file__).resolve().parents[2] / "benchmarks" / "draft_vocab.json"
DEPTH = 3
PROMPTS, TOKENS = 20, 250
SIZES: tuple[Any, ...] = ("all", 1536, 1024, 512, 128)  # the shipped model has 2,048 tokens
TIMED: tuple[Any, ...] = ("all", 65536, 32768, 16384)


COLUMNS = [
    Column("temperature", "temperature"),
    Column("tokens", "draft_vocab"),
    Column("accepted, by position", lambda row: " ".join(f"{share:.1%}" for share in row.accepted)),
    Column("outside, by position", lambda row: " ".join(f"{share:.1%}" for share in row.outside)),
    Column("tokens per round", "tokens_per_round", ".2f"),
]


def acceptance(size: Any, temperature: float, prompts: list[str]) -> dict[str, Any]:
    """Measure, by position, the share of accepted drafts, and of those rejected as the token is not in the set."""
    counts = count_drafts(prompts, TOKENS, temperature, seed=3, draft_tokens=DEPTH, draft_vocab=size)
    accepted = counts["by_position"]
    reached = [counts["rounds"], *accepted[:-1]]
    return {
        "draft_vocab": size,
        "temperature": temperature,
        "accepted": [a / n for a, n in zip(accepted, reached, strict=True)],
        "outside": [o / n for o, n in zip(counts["outside"], reached, strict=True)],
        "tokens_per_round": 1 + sum(accepted) / counts["rounds"],
        "text_sha256": counts["texts"],
    }


def cpu(call: Any, *arguments: Any) -> float:
    """Return the CPU milliseconds of a call."""
    start = process_time()
    call(*arguments)
    return 1e3 * (process_time() - start)


def times(path: Path, repeats: int) -> dict[str, Any]:
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


def main(
    model: Annotated[Path, typer.Argument(help="GGUF file with a vocabulary of 131,072 tokens or more.")],
    repeats: Annotated[int, typer.Option(help="Measurements of each time.")] = 15,
) -> None:
    """Measure and write benchmarks/draft_vocab.json."""
    prompts = held_out_prompts(PROMPTS)
    runs = [(size, temperature) for temperature in (0.0, 0.7) for size in SIZES]
    shipped = [acceptance(*run, prompts) for run in track(runs, console=screen)]
    timed = times(model, repeats)
    digest = hashlib.sha256(demo_model().read_bytes()).hexdigest()
    write_json(OUT, "drafts from a part of the vocabulary", shipped_sha256=digest, acceptance=shipped, times=timed)
    notes = [f"{name}: {value}" for name, value in timed.items()]
    show(Table("Acceptance of the shipped model", COLUMNS, [Cell(**row) for row in shipped]), notes=notes)


if __name__ == "__main__":
    typer.run(main)
