"""Compare the speed of a head in a file of its own with the same head inside the model's file.

    pip install . gguf typer
    python tools/bench/bench_head_files.py
    python tools/bench/bench_head_files.py --model build/0.8b-q4_0.gguf --tokens 64 --pairs 9

The file is split into trunk and head. Each measurement loads its files again, as speed depends on their place in
memory, and uses the same prompts. Each kind is measured in pairs of inside and apart, one right after the other, in
alternating order. A ratio above 1 means that the separate head is faster in this pair.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from peer import WARM_UP, Comparison, ModelFile, Output, Pairs, Threads, prepare, show, write_json

from pymtp import LLM, SamplingParams
from pymtp.model.model import demo_model
from pymtp.native.cores import default_threads

from makers.head_file import write_pair  # isort: skip  # peer makes the folder of tests importable

INSIDE, APART = "inside", "apart"
Drafts = int | Literal["auto"]


def measure(
    files: tuple[Path, Path | None],
    drafts: Drafts,
    threads: int,
    prompts: Sequence[Sequence[int]],
    bias: dict[int, float],
    tokens: int,
) -> float:
    """Return the tokens/s of prefill if `tokens` is 1, else of decoding."""
    model, head = files
    with LLM(model, head=head, n_ctx=2048, n_threads=threads, draft_tokens=drafts, cache_prompt=False) as llm:
        llm.generate(prompts[0][:64], SamplingParams(max_tokens=WARM_UP, logit_bias=bias))
        completions = llm.generate(prompts, SamplingParams(max_tokens=tokens, logit_bias=bias))
    if tokens == 1:
        return sum(c.stats.prompt_tokens for c in completions) / sum(c.stats.prefill_seconds for c in completions)
    return sum(c.stats.completion_tokens - 1 for c in completions) / sum(c.stats.decode_seconds for c in completions)


def main(
    model: ModelFile = None,
    pairs: Pairs = 15,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=2, help="Tokens for each prompt.")] = 400,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompts for prefill.")] = 1024,
    drafts: Annotated[str, typer.Option(help="Drafts per round.")] = "1,3,7,auto",
    threads: Threads = None,
    output: Output = None,
) -> None:
    """Compare a separate head with the same head inside the model's file."""
    file, threads = model or demo_model(), threads or default_threads()
    texts, bias = prepare(file, 4, held_out=model is None)
    long, _ = prepare(file, 2, prompt, held_out=False)
    depths: list[Drafts] = ["auto" if d == "auto" else int(d) for d in drafts.split(",")]
    kinds: dict[str, tuple[Any, ...]] = {f"prompts of {prompt}": (3, threads, long, bias, 1)}
    kinds |= {f"drafts {depth}": (depth, threads, texts, bias, tokens) for depth in depths}
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(shutil.copy(file, folder))  # all files must be in one file system, as speed depends on it
        trunk, head = write_pair(file, Path(folder))
        files: dict[str, tuple[Path, Path | None]] = {INSIDE: (whole, None), APART: (trunk, head)}
        for kind, settings in kinds.items():
            results = Comparison[float](float)
            for _ in results.run(kind, {arm: partial(measure, own, *settings) for arm, own in files.items()}, pairs):
                pass
            show(results.table(f"{file.name}, {threads} threads, {kind}", "tokens/s", INSIDE))
            ratios[kind] = results.ratios(APART, INSIDE)
    write_json(
        output,
        "head apart against inside",
        settings={"model": file.name, "threads": threads, "tokens": tokens, "prompt": prompt, "pairs": pairs},
        median_ratio={kind: statistics.median(values) for kind, values in ratios.items()},
        ratios=ratios,
    )


if __name__ == "__main__":
    typer.run(main)
