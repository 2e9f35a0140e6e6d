"""What the comparisons with llama-server share: their prompts, a process for each measurement, rounds of all arms."""

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
    """What it returns, called in a process of its own, which the next one finds nothing of."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(call, arguments)


def resident(pid: int | None = None) -> int:
    """The most bytes that a process, or this one, had in memory so far, mapped files included. Linux only."""
    status = Path(f"/proc/{pid or os.getpid()}/status").read_text()
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def prepare(
    file: Path, n: int, most_tokens: int | None = None, *, held_out: bool
) -> tuple[list[list[int]], dict[int, float]]:
    """n prompts as token ids, and the bias that keeps end tokens out, as llama-server's ignore_eos does.

    held_out: pieces of text that the shipped model was not trained on, of at most so many tokens; else 100 random
    tokens, or so many. To be run in a process of its own: the model is loaded for it.
    """
    with Model(file, mtp=False) as model:
        if held_out:
            prompts = [model.tokenize(text)[:most_tokens] for text in held_out_prompts(n)]
        else:
            numbers = random.Random(0)
            prompts = [numbers.choices(range(model.n_vocab), k=most_tokens or 100) for _ in range(n)]
        ends = {token: float("-inf") for token in range(model.n_vocab) if model.ends_generation(token)}
    return prompts, ends


def rounds(arms: Mapping[str, Callable[[], T]], n: int) -> Iterator[dict[str, T]]:
    """n rounds, each with one measurement of every arm, in alternating order. An arm that is taken out meanwhile is in
    no further round."""
    for number in range(n):
        order = list(arms) if number % 2 == 0 else list(arms)[::-1]
        measured = {arm: arms[arm]() for arm in order}
        yield {arm: measured[arm] for arm in arms}
