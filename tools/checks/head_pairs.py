"""Loads models with heads that do not fit or are damaged, each pair in a process of its own, and counts findings.

    python tools/checks/head_pairs.py --pairs 10000 --jobs 2 --out build/head_pairs

A pair may be refused when it is loaded, or must generate the tokens of the model without drafts, although the head's
file is replaced meanwhile. A head cannot change a text: if the model generates without it, no request fails with it.
run_in_forks.py defines the other findings. The files of a finding are kept; `--only INDEX` repeats it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from pair_recipes import make_bases, make_pair
from run_in_forks import ForkRunner, Results, run

from pymtp import LLM, Model, PymtpError, SamplingParams

PROMPT = "def f(a, b):\n    ab"
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


def write_tokens(model: Path, head: Path) -> None:
    """Generate tokens with 2 drafts and without drafts.

    Raises PymtpError if the pair or the model alone is refused; AssertionError if the head changes the tokens.
    """
    plain = _plain_tokens(model)
    with LLM(model, head=head, draft_tokens=2, n_ctx=64, n_threads=1, n_gpu_layers=0) as llm:
        if head != model:
            head.unlink()
            head.write_bytes(b"another file")
        found = _tokens_of(llm)
    if isinstance(plain, PymtpError):
        raise plain
    assert found == plain, f"{found!r}, and without drafts {plain}"


def _plain_tokens(path: Path) -> list[int] | PymtpError:
    try:
        with Model(path, mtp=False, n_gpu_layers=0) as model, LLM(model, draft_tokens=0, n_ctx=64, n_threads=1) as llm:
            return _tokens_of(llm)
    except PymtpError as error:
        return error


def _tokens_of(llm: LLM) -> list[int] | PymtpError:
    try:
        return list(llm.generate(PROMPT, PARAMS).token_ids)
    except PymtpError as error:
        return error


def try_pairs(seed: int, indices: Iterator[int], folder: Path, until: float = float("inf")) -> Iterator[Results]:
    """Try the pairs with these indices, and yield the results of each."""
    bases, place = make_bases(folder), folder / f"pair-{os.getpid()}"
    sound = bases[0]
    child = ForkRunner(lambda: write_tokens(sound.trunk, Path(shutil.copy(sound.head, place / "sound.gguf"))))
    for index in indices:
        if time.monotonic() > until:
            return
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        pair = make_pair(seed, index, bases, place)
        yield child.results(lambda: write_tokens(pair.model, pair.head), index, pair.damage, pair[:2])  # noqa: B023


def main(
    pairs: Annotated[int, typer.Option(help="How many pairs.")] = 1000,
    jobs: Annotated[int, typer.Option(help="Processes that try pairs.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed makes other pairs.")] = 0,
    time_budget: Annotated[float, typer.Option(help="Minutes after which no further pair is tried.")] = 1e9,
    only: Annotated[int, typer.Option(help="Try the pair of this index only.")] = -1,
    out: Annotated[Path | None, typer.Option(help="Folder for the summary and the files of findings.")] = None,
) -> None:
    """Load pairs of a model and a head and print a summary as JSON; exit with status 1 if there are findings."""
    summary = run(try_pairs, pairs, jobs, seed, time_budget, only)
    print(json.dumps(summary, indent=2))
    if out is not None:
        _save(out, summary)
    raise typer.Exit(1 if summary["findings"] else 0)


def _save(out: Path, summary: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        bases = make_bases(Path(folder))
        for finding in summary["findings"]:
            place = out / f"{summary['seed']}-{finding['index']}"
            place.mkdir(exist_ok=True)
            make_pair(summary["seed"], finding["index"], bases, place)


if __name__ == "__main__":
    typer.run(main)
