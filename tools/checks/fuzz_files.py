"""Loads damaged model files, each in a process of its own, and counts errors other than PymtpError.

    python tools/checks/fuzz_files.py --files 100000 --jobs 2 --out build/fuzz

A file may be refused, or load and generate 4 tokens; run_in_forks.py defines a finding. The file of a finding is kept
with its recipe; `--only INDEX` repeats it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from gguf_damage import damaged
from makers.gguf_parts import GGUF, parse
from makers.make_model import make_model
from makers.model_shapes import PRESETS, Shape
from odd_shapes import odd_shape
from run_in_forks import ForkRunner, Results, run

from pymtp import LLM, SamplingParams

ODD = 0.05  # share of files with an odd shape
_SMALL = replace(
    PRESETS["tiny"],
    n_embd=32,
    n_vocab=264,
    n_head=2,
    n_head_kv=1,
    head_dim=32,
    n_rot=16,
    rope_sections=(3, 3, 2),
    linear_k_heads=1,
    linear_v_heads=2,
    n_ff=32,
)
_WIDE = replace(
    _SMALL, n_embd=256, linear_v_heads=8, linear_k_heads=2, head_dim=128, n_ff=256
)  # rows that fit K-quants
_EXPERTS = replace(_SMALL, n_ff=0, n_expert=4, n_expert_used=2, n_ff_expert=32, n_ff_shared=32, tied=False)
BASES: tuple[tuple[Shape, str], ...] = (
    (_SMALL, "f32"),
    (replace(_SMALL, tied=False, head=False), "q8_0"),
    (_EXPERTS, "q4_0"),
    (_WIDE, "q4_k"),
    (replace(_EXPERTS, next=True), "f16"),
)


@dataclass(frozen=True)
class Recipe:
    """A recipe for a damaged file: it always makes the same file."""

    seed: int
    index: int

    def make(self, bases: list[GGUF], folder: Path) -> tuple[bytes, list[str]]:
        """Return the file, and a list of its damage."""
        rng = Random(f"{self.seed}:{self.index}")
        if rng.random() > ODD:
            return damaged(bases[self.index % len(bases)], rng)
        shape, kind = odd_shape(rng), rng.choice(("f32", "f16", "bf16", "q8_0", "q4_0"))
        (path,) = make_model(shape, folder / f"odd-{os.getpid()}.gguf", weight_type=kind, threads=1)
        file, done = parse(path.read_bytes()), [f"{kind}, {shape}"]
        if rng.random() < 0.5:
            return file.encoded(), done
        data, more = damaged(file, rng)
        return data, done + more


def make_bases(folder: Path) -> tuple[list[GGUF], Path]:
    """Make the sound files to damage: return them, and the path of the first one."""
    paths = [make_model(shape, folder / f"{i}.gguf", weight_type=kind)[0] for i, (shape, kind) in enumerate(BASES)]
    return [parse(path.read_bytes()) for path in paths], paths[0]


def write_tokens(path: Path) -> None:
    """Load a model and generate 4 tokens."""
    with LLM(path, n_ctx=64, n_threads=1, n_gpu_layers=0, draft_tokens=2) as llm:
        llm.generate("ab", SamplingParams(max_tokens=4))
        _ = llm.model.metadata, llm.chat_template.render([{"role": "user", "content": "ab"}])


def try_files(seed: int, indices: Iterator[int], folder: Path, until: float = float("inf")) -> Iterator[Results]:
    """Try the files with these indices, and yield the results of each."""
    bases, sound = make_bases(folder)
    path = folder / f"damaged-{os.getpid()}.gguf"
    child = ForkRunner(lambda: write_tokens(sound))
    for index in indices:
        if time.monotonic() > until:
            return
        data, damage = Recipe(seed, index).make(bases, folder)
        path.write_bytes(data)
        yield child.results(lambda: write_tokens(path), index, damage, [path])


def main(
    files: Annotated[int, typer.Option(help="How many files.")] = 1000,
    jobs: Annotated[int, typer.Option(help="Processes that try files.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed makes other files.")] = 0,
    time_budget: Annotated[float, typer.Option(help="Minutes after which no further file is tried.")] = 1e9,
    only: Annotated[int, typer.Option(help="Try the file of this index only.")] = -1,
    out: Annotated[Path | None, typer.Option(help="Folder for the summary and the files of findings.")] = None,
) -> None:
    """Load damaged model files and print a summary as JSON; exit with status 1 if there are findings."""
    summary = run(try_files, files, jobs, seed, time_budget, only)
    print(json.dumps(summary, indent=2))
    if out is not None:
        _save(out, summary)
    raise typer.Exit(1 if summary["findings"] else 0)


def _save(out: Path, summary: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        bases, _ = make_bases(Path(folder))
        for finding in summary["findings"]:
            data, _ = Recipe(summary["seed"], finding["index"]).make(bases, Path(folder))
            (out / f"{summary['seed']}-{finding['index']}.gguf").write_bytes(data)


if __name__ == "__main__":
    typer.run(main)
