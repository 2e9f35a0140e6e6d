"""Decoding with MTP, pymtp against llama-server: the same llama.cpp, the same file, the same tokens, greedy.

    pip install . typer
    python tools/bench/bench_server.py
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_server.py --model build/0.8b-q4_0.gguf --tokens 64 --pairs 5

llama-server is built from the pinned sources, with pymtp's build options and with no patch but the two that llama.cpp
needs to run on a processor with AMX, and runs with
`--spec-type draft-mtp`. Both get the same prompts as token ids, write the same number of tokens with no end token
among them, and have equal threads, context, batches, cache types and flash attention; neither keeps prompts. Decoding
alone counts, from a prompt's last logits to the last token: by the server's own clock there, by `Stats` here.

Every measurement is a process of its own, warmed up with one request. They come in rounds, one of each kind, in
alternating order: what the machine does meanwhile meets all alike, and the ratio within a round is what counts.
With --apart each side runs once more on two files, trunk and head, which the model is taken apart into: llama-server
with `-md`, pymtp with `head`. How its ratio there compares with that on one file is said as well.

The tokens are compared too: where they first differ is reported, and the acceptance of each side. With random weights
no draft is accepted on either side.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import llama_server
import typer
from llama_build import BuildError
from llama_server import ServerError
from peer import in_a_process, prepare, rounds
from rich.console import Console
from rich.table import Table

from pymtp import LLM, PymtpError, SamplingParams, build_info
from pymtp.model.model import demo_model
from pymtp.native.cores import default_threads

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.head_file import write_pair

screen = Console(stderr=True, highlight=False)

SERVER, FIXED, AUTO = "llama-server", "pymtp", "pymtp auto"
SERVER_APART, FIXED_APART = "llama-server -md", "pymtp head"

Files = tuple[Path, Path | None]  # of the model, and of a head apart


class Prompts(str, Enum):
    """What the models go on from."""

    held_out = "held-out"
    random = "random"


@dataclass(frozen=True)
class Settings:
    """What all sides are given. drafts: the depth of llama-server and of pymtp's first arm."""

    model: Path
    prompts: Prompts
    n_prompts: int
    tokens: int
    drafts: int
    threads: int
    n_ctx: int
    n_batch: int
    n_ubatch: int
    gpu_layers: int
    cache_type: str
    flash_attn: str


@dataclass(frozen=True)
class Measurement:
    """What one arm made of all prompts. steps: tokens but the first of each, which the prompt brings."""

    steps: int
    seconds: float
    drafted: int
    accepted: int
    texts: list[list[int]]

    @property
    def speed(self) -> float:
        """Decoded tokens a second."""
        return self.steps / self.seconds

    @property
    def acceptance(self) -> float:
        """accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0


Round = dict[str, Measurement]  # by arm


def measure_server(program: Path, files: Files, settings: Settings, prompts: Sequence[Sequence[int]]) -> Measurement:
    """One run of llama-server. Raises ServerError."""
    model, head = files
    with llama_server.start(
        program,
        model,
        **({} if head is None else {"spec_draft_model": str(head)}),
        spec_type="draft-mtp",
        spec_draft_n_max=settings.drafts,
        threads=settings.threads,
        ctx_size=settings.n_ctx,
        batch_size=settings.n_batch,
        ubatch_size=settings.n_ubatch,
        cache_type_k=settings.cache_type,
        cache_type_v=settings.cache_type,
        spec_draft_type_k=settings.cache_type,
        spec_draft_type_v=settings.cache_type,
        flash_attn=settings.flash_attn,
        gpu_layers="all" if settings.gpu_layers < 0 else settings.gpu_layers,
    ) as server:
        server.complete(prompts[0], 16)
        answers = [server.complete(prompt, settings.tokens) for prompt in prompts]
    return Measurement(
        steps=sum(len(answer.token_ids) - 1 for answer in answers),
        seconds=sum(answer.seconds for answer in answers),
        drafted=sum(answer.drafted for answer in answers),
        accepted=sum(answer.accepted for answer in answers),
        texts=[answer.token_ids for answer in answers],
    )


def measure_pymtp(
    files: Files,
    settings: Settings,
    drafts: int | Literal["auto"],
    prompts: Sequence[Sequence[int]],
    bias: dict[int, float],
) -> Measurement:
    """One run of pymtp. To be run in a process of its own."""
    model, head = files
    with LLM(
        model,
        head=head,
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        n_threads=settings.threads,
        n_gpu_layers=settings.gpu_layers,
        type_k=settings.cache_type,
        type_v=settings.cache_type,
        flash_attn=settings.flash_attn,
        draft_tokens=drafts,  # type: ignore[arg-type, unused-ignore]
        cache_prompt=False,
    ) as llm:
        llm.generate(prompts[0], SamplingParams(max_tokens=16, logit_bias=bias))
        done = llm.generate(prompts, SamplingParams(max_tokens=settings.tokens, logit_bias=bias))
    return Measurement(
        steps=sum(completion.stats.completion_tokens - 1 for completion in done),
        seconds=sum(completion.stats.decode_seconds for completion in done),
        drafted=sum(completion.stats.drafted for completion in done),
        accepted=sum(completion.stats.accepted for completion in done),
        texts=[completion.token_ids for completion in done],
    )


def measure(settings: Settings, n: int, *, auto: bool, apart: Files | None) -> list[Round]:
    """n rounds of all arms, in alternating order. Says on stderr how it goes. apart: the model as two files."""
    program = llama_server.build()
    held_out = settings.prompts is Prompts.held_out
    prompts, bias = in_a_process(partial(prepare, settings.model, settings.n_prompts, held_out=held_out))
    whole: Files = (settings.model, None)
    depths: dict[str, int | Literal["auto"]] = {FIXED: settings.drafts} | ({AUTO: "auto"} if auto else {})
    arms = {SERVER: partial(measure_server, program, whole, settings, prompts)}
    arms |= {
        arm: partial(in_a_process, measure_pymtp, whole, settings, drafts, prompts, bias)
        for arm, drafts in depths.items()
    }
    if apart is not None:
        arms[SERVER_APART] = partial(measure_server, program, apart, settings, prompts)
        arms[FIXED_APART] = partial(in_a_process, measure_pymtp, apart, settings, settings.drafts, prompts, bias)
    found: list[Round] = []
    for measured in rounds(arms, n):
        found.append(measured)
        said = ", ".join(f"{arm} {m.speed:.2f}/s" for arm, m in measured.items())
        against = ", ".join(f"{ratios([measured], arm)[0]:.3f}" for arm in depths)
        screen.print(f"round {len(found)} of {n}: {said}; ratio {against}")
    return found


def ratios(rounds: Sequence[Round], arm: str) -> list[float]:
    """An arm's tokens a second over llama-server's, round by round."""
    return [measured[arm].speed / measured[SERVER].speed for measured in rounds]


def against_inside(rounds: Sequence[Round]) -> list[float]:
    """pymtp / llama-server on two files, over the same on one file, round by round."""
    return [
        m[FIXED_APART].speed / m[SERVER_APART].speed / (m[FIXED].speed / m[SERVER].speed)
        for m in rounds
        if FIXED_APART in m
    ]


def rows(rounds: Sequence[Round]) -> list[tuple[str, ...]]:
    """The lines of the table: arm, median tokens/s, lowest and highest; the same of the ratio; acceptance."""
    lines: list[tuple[str, ...]] = []
    for arm in rounds[0]:
        speeds = [measured[arm].speed for measured in rounds]
        against = ratios(rounds, arm)
        lines.append(
            (
                arm,
                f"{statistics.median(speeds):.2f}",
                f"{min(speeds):.2f} … {max(speeds):.2f}",
                *(
                    ("", "")
                    if arm == SERVER
                    else (f"{statistics.median(against):.3f}", f"{min(against):.3f} … {max(against):.3f}")
                ),
                f"{rounds[0][arm].acceptance:.1%}",
            )
        )
    return lines


def agreement(rounds: Sequence[Round], arm: str) -> dict[str, Any]:
    """How an arm's texts differ from llama-server's in the first round: texts, those that differ, and of each of these
    its number, the place of the first difference and both tokens there."""
    pairs = list(zip(rounds[0][SERVER].texts, rounds[0][arm].texts, strict=True))
    firsts = [
        (number, *next((i, a, b) for i, (a, b) in enumerate(zip(theirs, mine, strict=True)) if a != b))
        for number, (theirs, mine) in enumerate(pairs)
        if theirs != mine
    ]
    return {"texts": len(pairs), "differing": len(firsts), "first_differences": firsts}


def show(settings: Settings, rounds: Sequence[Round]) -> None:
    """The tables for a person."""
    console = Console(highlight=False)
    title = f"{settings.model.name}: {settings.n_prompts} texts of {settings.tokens} tokens, "
    title += f"{settings.drafts} drafts, {settings.threads} threads"
    table = Table("", "tokens/s", "range", "ratio", "range", "accepted", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in rows(rounds):
        table.add_row(*line)
    console.print(table)
    for arm in rounds[0]:
        if arm != SERVER:
            found = agreement(rounds, arm)
            console.print(f"{arm}: {found['texts'] - found['differing']} of {found['texts']} texts are {SERVER}'s")
            for text, place, theirs, mine in found["first_differences"]:
                console.print(f"  text {text}: first at token {place}, {theirs} there, {mine} here")
    if of_two := against_inside(rounds):
        console.print(
            f"pymtp / llama-server on two files over the same on one: {statistics.median(of_two):.3f} "
            f"({min(of_two):.3f} … {max(of_two):.3f})"
        )


def as_json(settings: Settings, rounds: Sequence[Round]) -> str:
    """Every measurement but the texts, the medians, and what they were made with and on."""
    arms = list(rounds[0])
    result = {
        "bench": "decoding against llama-server",
        "settings": asdict(settings) | {"model": settings.model.name},
        "median_tokens_per_second": {arm: statistics.median(m[arm].speed for m in rounds) for arm in arms},
        "median_ratio": {arm: statistics.median(ratios(rounds, arm)) for arm in arms if arm != SERVER},
        "two_files_over_one": against_inside(rounds),
        "acceptance": {arm: rounds[0][arm].acceptance for arm in arms},
        "same_text": {arm: agreement(rounds, arm) for arm in arms if arm != SERVER},
        "rounds": [
            {arm: {"tokens_per_second": m.speed, "drafted": m.drafted, "accepted": m.accepted} for arm, m in r.items()}
            for r in rounds
        ],
        "machine": {"system": platform.platform(), "python": platform.python_version()},
        "build": build_info(),
    }
    return json.dumps(result, indent=1)


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    pairs: Annotated[int, typer.Option("--pairs", "-r", min=1, help="Measurements of each kind.")] = 10,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=2, help="Tokens for each prompt.")] = 200,
    prompts: Annotated[Prompts | None, typer.Option(help="held-out for pymtp's own model, else random.")] = None,
    n_prompts: Annotated[int, typer.Option(min=1, help="Prompts in a measurement.")] = 4,
    drafts: Annotated[int, typer.Option("--drafts", "-d", min=1, help="Drafts per round on both sides.")] = 3,
    auto: Annotated[bool, typer.Option(help='Also pymtp with draft_tokens="auto".')] = True,
    apart: Annotated[bool, typer.Option(help="Also with the head in a file of its own.")] = False,
    threads: Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")] = None,
    n_ctx: Annotated[int, typer.Option(help="Tokens that the context holds.")] = 1024,
    gpu_layers: Annotated[int, typer.Option("--gpu-layers", "-g", help="Layers on the GPU, -1 for all.")] = -1,
    cache_type: Annotated[str, typer.Option(help="Type of the K and V cache.")] = "f16",
    flash_attn: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",
    output: Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")] = None,
) -> None:
    """Compare pymtp's decoding with llama-server's."""
    settings = Settings(
        model=model or demo_model(),
        prompts=prompts or (Prompts.random if model else Prompts.held_out),
        n_prompts=n_prompts,
        tokens=tokens,
        drafts=drafts,
        threads=threads or default_threads(),
        n_ctx=n_ctx,
        n_batch=2048,
        n_ubatch=512,
        gpu_layers=gpu_layers,
        cache_type=cache_type,
        flash_attn=flash_attn,
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = write_pair(settings.model, Path(folder)) if apart else None
            rounds = measure(settings, pairs, auto=auto, apart=files)
    except (BuildError, ServerError, PymtpError) as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)
    show(settings, rounds)
    if output is not None:
        output.write_text(as_json(settings, rounds) + "\n")


if __name__ == "__main__":
    typer.run(main)
