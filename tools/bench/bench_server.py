"""Compare greedy decoding with MTP, pymtp and llama-server: the same llama.cpp, model file and tokens.

    pip install . typer
    python tools/bench/bench_server.py
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_server.py --model build/0.8b-q4_0.gguf --tokens 64 --pairs 5

llama-server is built from the pinned sources with pymtp's build options, and only with the two patches that llama.cpp
needs on a processor with AMX. It runs with `--spec-type draft-mtp`. Both sides get the same prompts as token ids,
generate the same number of tokens without end tokens, and have equal threads, context, batches, cache types and flash
attention; neither caches prompts. Only decoding is timed, from the first token to the last: by the server's own clock,
and by pymtp's `Stats`.

Every measurement is a process of its own, warmed up with one request. Each round has one measurement of each arm, in
alternating order, and ratios are computed within a round: so a change of the machine's speed affects all arms alike.
With --apart each side also runs on two files, trunk and head, into which the model is split: llama-server with `-md`,
pymtp with `head`. The table also compares pymtp's ratio there with that on one file.

The tokens are compared, too: the report has the first difference, and the acceptance of each side. With random weights
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

Files = tuple[Path, Path | None]  # the model, and a separate head


class Prompts(str, Enum):
    """The kind of prompts."""

    held_out = "held-out"
    random = "random"


@dataclass(frozen=True)
class Settings:
    """Settings of both sides. drafts: the depth of llama-server and of pymtp's first arm."""

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
    """The measurement of one arm over all prompts. steps: decoded tokens, without the first of each prompt."""

    steps: int
    seconds: float
    drafted: int
    accepted: int
    texts: list[list[int]]

    @property
    def speed(self) -> float:
        """Return the tokens/s of decoding."""
        return self.steps / self.seconds

    @property
    def acceptance(self) -> float:
        """Return accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0


Round = dict[str, Measurement]  # measurements by arm


def measure_server(program: Path, files: Files, settings: Settings, prompts: Sequence[Sequence[int]]) -> Measurement:
    """Measure a run of llama-server. Raises ServerError."""
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
    """Measure a run of pymtp. Call it in a new process."""
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
        completions = llm.generate(prompts, SamplingParams(max_tokens=settings.tokens, logit_bias=bias))
    return Measurement(
        steps=sum(completion.stats.completion_tokens - 1 for completion in completions),
        seconds=sum(completion.stats.decode_seconds for completion in completions),
        drafted=sum(completion.stats.drafted for completion in completions),
        accepted=sum(completion.stats.accepted for completion in completions),
        texts=[completion.token_ids for completion in completions],
    )


def measure(settings: Settings, n: int, *, auto: bool, apart: Files | None) -> list[Round]:
    """Measure n rounds of all arms. Print the progress on stderr. apart: the model as two files."""
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
    results: list[Round] = []
    for measured in rounds(arms, n):
        results.append(measured)
        speeds = ", ".join(f"{arm} {m.speed:.2f}/s" for arm, m in measured.items())
        shown_ratios = ", ".join(f"{ratios([measured], arm)[0]:.3f}" for arm in depths)
        screen.print(f"round {len(results)} of {n}: {speeds}; ratio {shown_ratios}")
    return results


def ratios(rounds: Sequence[Round], arm: str) -> list[float]:
    """Return the ratios of an arm's tokens/s to llama-server's, round by round."""
    return [measured[arm].speed / measured[SERVER].speed for measured in rounds]


def two_files_over_one(rounds: Sequence[Round]) -> list[float]:
    """Return the ratios of pymtp / llama-server on two files to the same on one file, round by round."""
    return [
        m[FIXED_APART].speed / m[SERVER_APART].speed / (m[FIXED].speed / m[SERVER].speed)
        for m in rounds
        if FIXED_APART in m
    ]


def rows(rounds: Sequence[Round]) -> list[tuple[str, ...]]:
    """Return the lines of the table: arm; median, lowest and highest tokens/s; the same for the ratio; acceptance."""
    lines: list[tuple[str, ...]] = []
    for arm in rounds[0]:
        speeds = [measured[arm].speed for measured in rounds]
        arm_ratios = ratios(rounds, arm)
        lines.append(
            (
                arm,
                f"{statistics.median(speeds):.2f}",
                f"{min(speeds):.2f} … {max(speeds):.2f}",
                *(
                    ("", "")
                    if arm == SERVER
                    else (f"{statistics.median(arm_ratios):.3f}", f"{min(arm_ratios):.3f} … {max(arm_ratios):.3f}")
                ),
                f"{rounds[0][arm].acceptance:.1%}",
            )
        )
    return lines


def compare_texts(rounds: Sequence[Round], arm: str) -> dict[str, Any]:
    """Compare an arm's texts with llama-server's in the first round.

    Return the number of texts, of those that differ, and for each of these its number, the index of the first different
    token, and both tokens.
    """
    pairs = list(zip(rounds[0][SERVER].texts, rounds[0][arm].texts, strict=True))
    firsts = [
        (number, *next((i, a, b) for i, (a, b) in enumerate(zip(peer, own, strict=True)) if a != b))
        for number, (peer, own) in enumerate(pairs)
        if peer != own
    ]
    return {"texts": len(pairs), "differing": len(firsts), "first_differences": firsts}


def show(settings: Settings, rounds: Sequence[Round]) -> None:
    """Print the tables."""
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
            texts = compare_texts(rounds, arm)
            console.print(f"{arm}: {texts['texts'] - texts['differing']} of {texts['texts']} texts are {SERVER}'s")
            for text, index, peer, own in texts["first_differences"]:
                console.print(f"  text {text}: first at token {index}, {peer} in {SERVER}, {own} in pymtp")
    if values := two_files_over_one(rounds):
        console.print(
            f"pymtp / llama-server on two files over the same on one: {statistics.median(values):.3f} "
            f"({min(values):.3f} … {max(values):.3f})"
        )


def as_json(settings: Settings, rounds: Sequence[Round]) -> str:
    """Format all measurements without their texts, the medians, settings and environment as JSON."""
    arms = list(rounds[0])
    result = {
        "bench": "decoding against llama-server",
        "settings": asdict(settings) | {"model": settings.model.name},
        "median_tokens_per_second": {arm: statistics.median(m[arm].speed for m in rounds) for arm in arms},
        "median_ratio": {arm: statistics.median(ratios(rounds, arm)) for arm in arms if arm != SERVER},
        "two_files_over_one": two_files_over_one(rounds),
        "acceptance": {arm: rounds[0][arm].acceptance for arm in arms},
        "same_text": {arm: compare_texts(rounds, arm) for arm in arms if arm != SERVER},
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
