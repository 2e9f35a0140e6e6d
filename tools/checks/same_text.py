"""Counts the tokens that drafting changes: texts with MTP against the same texts without, token by token.

    pip install . gguf typer
    python tools/checks/same_text.py

The shipped model and its F16 and F32 twins, or the given files, continue held-out prompts: greedily and at two
temperatures, with every filter, and also with penalties and a bias; at each depth against plain decoding, and each
against itself in a second run. After a differing token, the rest of the text differs too, so the rate of differences is
given by the differing texts and the tokens before their first difference.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pymtp import LLM, SamplingParams, build_info
from pymtp.model.model import demo_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts
from makers.gguf_variants import rewrite

Texts = list[list[int]]

FILTERS: dict[str, Any] = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1}
WAYS: dict[str, dict[str, Any]] = {
    "T=0": {},
    "T=0, penalized": {**PENALTIES, "logit_bias": {10: -2.0, 32: 0.5}},
    "T=0.7": {"temperature": 0.7, "seed": 7, **FILTERS},
    "T=0.7, penalized": {"temperature": 0.7, "seed": 8, **FILTERS, **PENALTIES},
    "T=1.0": {"temperature": 1.0, "seed": 9, **FILTERS},
    "T=1.0, penalized": {
        "temperature": 1.0,
        "seed": 10,
        **FILTERS,
        **PENALTIES,
        "logit_bias": {10: -2.0, 32: 0.5},
    },
}


@dataclass(frozen=True)
class Job:
    """One file at one depth: its texts are generated in a process of its own, `runs` times."""

    model: Path
    drafts: int | Literal["auto"]
    prompts: tuple[str, ...]
    length: int
    runs: int
    cache_type: str
    flash_attn: str


@dataclass(frozen=True)
class Written:
    """The texts of a job for each run and each of WAYS, and their seconds."""

    job: Job
    texts: list[dict[str, Texts]]
    seconds: list[dict[str, float]]


@dataclass(frozen=True)
class Row:
    """The differences of texts from their reference.

    compared_with: "plain" for texts without drafts, "itself" for a second run.
    up_to_first: tokens compared before each text's first difference, or its end.
    first: text and position of the first difference.
    """

    model: str
    way: str
    drafts: int | Literal["auto"]
    compared_with: str
    tokens: int
    differing_tokens: int
    texts: int
    differing_texts: int
    up_to_first: int
    first: tuple[int, int] | None
    seconds: float


def write(job: Job) -> Written:
    """Run a job with one thread: a model this small gains nothing from two, and another job uses the other core."""
    texts, seconds = [], []
    for _ in range(job.runs):
        with LLM(
            job.model,
            n_ctx=1024,
            n_threads=1,
            type_k=job.cache_type,
            type_v=job.cache_type,
            flash_attn=job.flash_attn,
            draft_tokens=job.drafts,  # type: ignore[arg-type, unused-ignore]
        ) as llm:
            run: dict[str, Texts] = {}
            took: dict[str, float] = {}
            for way, keywords in WAYS.items():
                params = SamplingParams(max_tokens=job.length, ignore_eos=True, **keywords)
                started = time.perf_counter()
                run[way] = [completion.token_ids for completion in llm.generate(job.prompts, params)]
                took[way] = time.perf_counter() - started
        texts.append(run)
        seconds.append(took)
    return Written(job, texts, seconds)


def compare(written: Written, way: str, with_what: str, expected: Texts, run: int) -> Row:
    """Compare the texts of one run with the expected ones, of the same lengths."""
    texts = written.texts[run][way]
    differing, firsts = 0, []
    up_to_first = 0
    for number, (mine, theirs) in enumerate(zip(texts, expected, strict=True)):
        places = [i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b]
        differing += len(places)
        firsts += [(number, places[0])] if places else []
        up_to_first += places[0] if places else len(mine)
    return Row(
        model=written.job.model.name,
        way=way,
        drafts=written.job.drafts,
        compared_with=with_what,
        tokens=sum(map(len, texts)),
        differing_tokens=differing,
        texts=len(texts),
        differing_texts=len(firsts),
        up_to_first=up_to_first,
        first=firsts[0] if firsts else None,
        seconds=written.seconds[run][way],
    )


def compare_all(done: Sequence[Written]) -> list[Row]:
    """Compare every job with the one without drafts, then with itself; sort by file and way."""
    plain = {written.job.model: written.texts[0] for written in done if written.job.drafts == 0}
    rows = []
    for written in done:
        for way in WAYS:
            if written.job.drafts != 0:
                rows.append(compare(written, way, "plain", plain[written.job.model][way], 0))
            for run in range(1, written.job.runs):
                rows.append(compare(written, way, "itself", written.texts[0][way], run))
    return sorted(rows, key=lambda row: (row.model, row.way, row.compared_with, str(row.drafts)))


def show(rows: Sequence[Row]) -> None:
    """Print a line for each file and way, with the depths summed and the seconds per 20,000 tokens.

    Differences follow below.
    """
    console = Console(highlight=False)
    table = Table("file", "way", "against", "tokens", "differ", "texts", "differ", "s/20,000")
    for column in table.columns[3:]:
        column.justify = "right"
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.way, row.compared_with), []).append(row)
    for name, group in groups.items():
        sums = [
            sum(getattr(row, of) for row in group)
            for of in ("tokens", "differing_tokens", "texts", "differing_texts", "seconds")
        ]
        table.add_row(*name, *(f"{value:,}" for value in sums[:4]), f"{sums[4] / sums[0] * 20_000:.1f}")
    console.print(table)
    for row in rows:
        if row.first:
            console.print(
                f"{row.model}, {row.way}, {row.drafts} drafts against {row.compared_with}: {row.differing_texts} of "
                f"{row.texts} texts differ, once in {row.up_to_first / row.differing_texts:,.0f} tokens; the first is "
                f"text {row.first[0]} at token {row.first[1]}",
                soft_wrap=True,
            )


def main(
    models: Annotated[list[Path] | None, typer.Argument(help="GGUF files; the shipped one and its twins.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens for each file, way and depth.")] = 20_000,
    length: Annotated[int, typer.Option(min=2, max=700, help="Tokens of a text.")] = 400,
    depths: Annotated[str, typer.Option(help="Depths to compare with plain decoding.")] = "1,2,3,4,5,6,7,8,auto",
    runs: Annotated[int, typer.Option(min=1, help="2 for a second run to compare with the first.")] = 2,
    cache_type: Annotated[str, typer.Option(help="Type of the K and V cache.")] = "f16",
    flash_attn: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",
    processes: Annotated[int, typer.Option(min=1, help="Jobs at a time.")] = 2,
    output: Annotated[Path | None, typer.Option("--json", help="Write every comparison to this file.")] = None,
) -> None:
    """Compare texts with and without drafts; exit with status 1 if a token differs."""
    prompts = tuple(held_out_prompts(-(-tokens // length)))
    # plain decoding first, then the slowest ones
    arms: list[int | Literal["auto"]] = [0, *("auto" if d == "auto" else int(d) for d in depths.split(","))]
    with tempfile.TemporaryDirectory() as directory:
        files = list(models or [])
        if not files:
            files = [demo_model(), Path(directory) / "demo-f16.gguf", Path(directory) / "demo-f32.gguf"]
            rewrite(files[0], files[1], weights="f16")
            rewrite(files[0], files[2], weights="f32")
        jobs = [Job(file, arm, prompts, length, runs, cache_type, flash_attn) for arm in arms for file in files]
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            running = pool.imap(write, jobs)
            done = list(track(running, total=len(jobs), console=Console(stderr=True), description="writing"))
    rows = compare_all(done)
    show(rows)
    if output is not None:
        result = {
            "check": "same text",
            "settings": {"tokens": tokens, "length": length, "cache_type": cache_type, "flash_attn": flash_attn},
            "ways": WAYS,
            "build": build_info(),
            "rows": [asdict(row) for row in rows],
        }
        output.write_text(json.dumps(result, indent=1) + "\n")
    if any(row.differing_tokens for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
