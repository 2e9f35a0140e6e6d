"""Counts the tokens and drafts that differ where a head is in a file of its own.

    pip install . gguf typer
    python tools/checks/head_files.py
    python tools/checks/head_files.py build/0.8b-q4_0.gguf --tokens 500 --length 50

The files named, or the shipped model and its F32 twin, are taken apart into trunk and head. The head is written once as
it is, and once with embeddings and an output layer of its own, in other types. Contexts of the whole file and of both
pairs, and one without drafts, go on from held-out prompts side by side, in each of the ways of same_text.py. All drafts
of the head that is as it was are compared, and all tokens of all contexts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from same_text import WAYS

from pymtp import SamplingParams
from pymtp.context.context import Context
from pymtp.model.model import Model, demo_model
from pymtp.sampling import Sampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts
from makers.gguf_variants import rewrite
from makers.head_file import read_tensor, write_head, write_pair

ARMS = ("inside", "apart", "own", "plain")


@dataclass
class Counts:
    """tokens: written by each arm. drafts: made by the head inside. The others: those that differ."""

    tokens: int = 0
    drafts: int = 0
    drafts_apart: int = 0
    tokens_apart: int = 0
    tokens_own: int = 0
    tokens_plain: int = 0
    accepted: int = 0
    accepted_own: int = 0


def write(
    context: Context, sampler: Sampler, prompt: Sequence[int], length: int, depth: int
) -> tuple[list[int], list[list[int]]]:
    """Write `length` tokens after a prompt with `depth` drafts a round. Returns them, and the drafts of each round."""
    context.clear()
    context.set_sampling(sampler)
    context.prefill(prompt)
    text, rounds = [context.first_token()], []
    while len(text) < length:
        drafts = context.draft_chain(text[-1], depth)[0] if depth else []
        held = context.n_past
        sampled = context.verify_chain([text[-1], *drafts])
        context.rewind(held + len(sampled))
        rounds.append(drafts)
        text += sampled
    return text[:length], rounds


def differing(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the places at which two texts of one length differ."""
    return sum(a != b for a, b in zip(one, other, strict=True))


def check(file: Path, tokens: int, length: int, depth: int, threads: int) -> Counts:
    """Compare all arms on one file."""
    counts = Counts()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trunk, head = write_pair(file, folder)
        table = {"output.weight": read_tensor(file, "token_embd.weight")}
        own = write_head(
            file, folder / "mtp-own.gguf", tensors=table, types={"token_embd.weight": "q5_1", "output.weight": "q8_0"}
        )[0]
        models = {
            "inside": Model(file),
            "apart": Model(trunk, head=head),
            "own": Model(trunk, head=own),
            "plain": Model(trunk),
        }
        contexts = {
            arm: stack.enter_context(
                Context(
                    stack.enter_context(model),
                    n_ctx=1024,
                    n_threads=threads,
                    draft_tokens=depth if arm != "plain" else 0,
                )
            )
            for arm, model in models.items()
        }
        texts = -(-tokens // (length * len(WAYS)))
        for number, prompt in enumerate(held_out_prompts(texts)):
            ids = models["plain"].tokenize(prompt)
            for keywords in WAYS.values():
                sampler = Sampler(SamplingParams(ignore_eos=True, **{**keywords, "seed": number}))
                done = {arm: write(contexts[arm], sampler, ids, length, 0 if arm == "plain" else depth) for arm in ARMS}
                text, rounds = done["inside"]
                counts.tokens += len(text)
                counts.drafts += depth * len(rounds)
                counts.tokens_apart += differing(text, done["apart"][0])
                counts.tokens_own += differing(text, done["own"][0])
                counts.tokens_plain += differing(text, done["plain"][0])
                counts.drafts_apart += sum(
                    differing(one, other) for one, other in zip(rounds, done["apart"][1], strict=False)
                ) + depth * abs(len(rounds) - len(done["apart"][1]))
                counts.accepted += len(text) - len(rounds)
                counts.accepted_own += len(text) - len(done["own"][1])
    return counts


def main(
    models: Annotated[
        list[Path] | None, typer.Argument(help="GGUF files with a head; the shipped one and its twin.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens for each file and depth.")] = 10_000,
    length: Annotated[int, typer.Option(min=2, max=700, help="Tokens of a text.")] = 200,
    depths: Annotated[str, typer.Option(help="Drafts a round.")] = "1,3,7",
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Exit status 1 when a token or a draft differs."""
    table = Table(
        "file", "drafts a round", "tokens", "differ apart", "own", "plain", "drafts", "differ apart", "accepted", "own"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        files = list(models or [])
        if not files:
            files = [demo_model(), Path(directory) / "demo-f32.gguf"]
            rewrite(files[0], files[1], weights="f32")
        for file in files:
            for depth in map(int, depths.split(",")):
                c = check(file, tokens, length, depth, threads)
                wrong += c.tokens_apart + c.tokens_own + c.tokens_plain + c.drafts_apart
                cells = (depth, c.tokens, c.tokens_apart, c.tokens_own, c.tokens_plain, c.drafts, c.drafts_apart)
                table.add_row(file.name, *(f"{cell:,}" for cell in cells), f"{c.accepted:,}", f"{c.accepted_own:,}")
    Console(highlight=False).print(table)
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
