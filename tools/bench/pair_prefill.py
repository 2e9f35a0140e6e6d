"""Compare prefill with and without MTP, ubatch by ubatch: for a ratio within a percent on a noisy machine.

    python tools/models/make_model.py qwen3.5-0.8b build/0.8b.gguf --type q4_0
    python tools/bench/pair_prefill.py build/0.8b.gguf --sizes 1k,4k,8k

`pymtp bench prefill` compares whole prompts. If a machine's speed drifts during a prompt by more than the expected
difference, that takes many rounds. Here two contexts prefill the same prompt in turns of one ubatch, in alternating
order: a turn lasts seconds, so a drift affects both alike. The ratio of a prompt is that of the sums of its turns. Each
round makes both contexts anew, in alternating order, as speed also depends on the place of their memory.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from peer import Output, write_json

from pymtp.cli.bench_values import read_numbers
from pymtp.context.context import Context
from pymtp.model.model import Model
from pymtp.native.cores import default_threads

UBATCH = 512


def prompt_seconds(contexts: Sequence[Context], prompt: Sequence[int], first: int) -> list[float]:
    """Prefill the prompt in two contexts, in turns. Return the seconds of each."""
    seconds = [0.0, 0.0]
    for start in range(0, len(prompt), UBATCH):
        turn = (first + start // UBATCH) % 2
        for index in (turn, 1 - turn):
            started = time.perf_counter()
            contexts[index].prefill(prompt[start : start + UBATCH])
            seconds[index] += time.perf_counter() - started
    return seconds


def main(
    model: Annotated[Path, typer.Argument(help="GGUF file with a head.", exists=True)],
    sizes: Annotated[str, typer.Option(help="Tokens a prompt.")] = "1k,4k,8k",
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1)] = 6,
    depth: Annotated[int, typer.Option(min=1, help="Drafts per round of the context with MTP.")] = 3,
    mode: Annotated[str, typer.Option(help="How the prompt reaches the head.")] = "fused",
    threads: Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")] = None,
    output: Output = None,
) -> None:
    """Print the ratio for each size: 1 means that MTP costs nothing."""
    numbers = random.Random(0)
    found = []
    with Model(model) as loaded:
        for size in read_numbers("--sizes", sizes):
            ratios = []
            for turn in range(rounds):
                prompt = numbers.choices(range(loaded.n_vocab), k=size)
                with ExitStack() as stack:
                    contexts: dict[int, Context] = {}
                    for drafts in (0, depth) if turn % 2 == 0 else (depth, 0):
                        contexts[drafts] = stack.enter_context(
                            Context(
                                loaded,
                                n_ctx=size,
                                n_ubatch=UBATCH,
                                n_threads=threads or default_threads(),
                                draft_tokens=drafts,
                                prefill=mode,
                            )
                        )
                        contexts[drafts].prefill(prompt[-UBATCH:])
                        contexts[drafts].clear()
                    none, mtp = prompt_seconds((contexts[0], contexts[depth]), prompt, turn // 2)
                ratios.append(none / mtp)
            print(
                f"{model.name} {size} tokens: {mode}/none {statistics.median(ratios):.4f}, "
                f"mean {statistics.mean(ratios):.4f}, from {min(ratios):.4f} to {max(ratios):.4f} in {rounds} rounds"
            )
            found.append({"tokens": size, "median": statistics.median(ratios), "ratios": ratios})
    n_threads = threads or default_threads()
    write_json(output, "prefill, ubatch by ubatch", model=model.name, threads=n_threads, depth=depth, sizes=found)


if __name__ == "__main__":
    typer.run(main)
