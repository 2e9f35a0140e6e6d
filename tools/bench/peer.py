"""Helpers of the comparisons with llama-server: prompts, a process for each measurement, rounds of all arms."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pymtp.model.model import Model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts

T = TypeVar("T")


def in_a_process(call: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process, so that nothing remains for the next measurement. Return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(call, arguments)


def peak_resident_bytes(pid: int | None = None) -> int:
    """Return the peak of the resident memory of a process, or of this one, with mapped files. Linux only."""
    status = Path(f"/proc/{pid or os.getpid()}/status").read_text()
    match = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def prepare(
    file: Path, n: int, max_tokens: int | None = None, *, held_out: bool
) -> tuple[list[list[int]], dict[int, float]]:
    """Make n prompts as token ids, and a logit bias that forbids end tokens, as llama-server's ignore_eos does.

    held_out: text that the shipped model was not trained on, cut to max_tokens; else max_tokens random tokens, 100 by
    default. Call it in a new process, as it loads the model.
    """
    with Model(file, mtp=False) as model:
        if held_out:
            prompts = [model.tokenize(text)[:max_tokens] for text in held_out_prompts(n)]
        else:
            numbers = random.Random(0)
            prompts = [numbers.choices(range(model.n_vocab), k=max_tokens or 100) for _ in range(n)]
        bias = {token: float("-inf") for token in range(model.n_vocab) if model.ends_generation(token)}
    return prompts, bias


def rounds(arms: Mapping[str, Callable[[], T]], n: int) -> Iterator[dict[str, T]]:
    """Yield n rounds, each with one measurement of every arm, in alternating order.

    The caller may delete arms between rounds.
    """
    for number in range(n):
        order = list(arms) if number % 2 == 0 else list(arms)[::-1]
        measured = {arm: arms[arm]() for arm in order}
        yield {arm: measured[arm] for arm in arms}
