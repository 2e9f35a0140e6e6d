"""Prompts that begin alike, pymtp against llama-server: the same llama.cpp, the same file, the same traces.

    pip install . typer
    python tools/models/make_model.py qwen3.5-0.8b build/08b4.gguf --type q4_0 --layers 4 --vocab 8192
    python tools/bench/bench_prefix.py --model build/08b4.gguf --traces prefixes,messages
    python tools/bench/bench_prefix.py --traces chat,agents,document,four,at-once

Traces are those of `pymtp bench prefix`. Prompts are token ids, the same on both sides but for what the model wrote
itself; answers have the same number of tokens. Both have as many texts at once with as much room, and the same host
memory for prefixes. For traces over several prefixes that is what half of them take: K and V of their tokens, and a
state each.

llama-server is built from the pinned sources and runs without drafts, which spares it the head's K and V; pymtp has its
head. It saves idle slots and keeps up to 32 checkpoints a slot (--ctx-checkpoints). Those of live slots do not count
for --cache-ram, though they are host memory, and pymtp's count for cache_bytes: two a slot come off --cache-ram, as it
takes two or three of each prompt. One arm has all of the memory as --cache-ram, for comparison. llama-server is told
where user messages begin, as its endpoint for chats finds out by the template. It runs with its default of 512 tokens a
ubatch and with less, for it takes its last checkpoints a ubatch and 4 tokens before the end of a prompt. --cache-reuse
is not for hybrid models. pymtp is compared with the arm of as much memory that read the fewest tokens.

Every measurement is a process of its own, warmed up with one prompt. They come in rounds, one of each kind, in
alternating order.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import llama_server
import typer
from llama_build import BuildError
from llama_server import Answer, ServerError
from peer import in_a_process, resident, rounds
from rich.console import Console
from rich.table import Table

from pymtp import LLM, InvalidRequestError, PymtpError, SamplingParams, build_info
from pymtp.bench.machine import machine
from pymtp.bench.prefix import WARM_UP, Asked, half_of
from pymtp.bench.traces import DISK, NAMES, USER, Ask, Texts, Trace, Words, make, unseen
from pymtp.model.model import demo_model
from pymtp.native.cores import default_threads

screen = Console(stderr=True, highlight=False)

PYMTP, SERVER = "pymtp", "llama-server"
# beside the options that all arms have; the first is what llama-server does by itself
SERVER_ARMS: dict[str, dict[str, str | int]] = {
    SERVER: {},
    f"{SERVER}, ubatch 256": {"ubatch_size": 256},
    f"{SERVER}, ubatch 128": {"ubatch_size": 128},
}
MORE = f"{SERVER}, ubatch 256, more memory"  # whose live checkpoints do not count
CHECKPOINTS = 32  # a slot's, llama-server's default
LIVE = 2  # of a slot that count
MIB = 2**20
PAGE = 256  # tokens that contexts are rounded up to


@dataclass(frozen=True)
class Settings:
    """What all sides are given. cache_mib: of traces that are not about a number of prefixes. scale: of all lengths.
    requests: at most, of each trace."""

    model: Path
    n_seq_max: int
    threads: int
    cache_mib: int
    scale: float
    requests: int | None


@dataclass(frozen=True)
class Case:
    """A trace, and the host memory for its prefixes. live_mib: what checkpoints of llama-server's slots take of it."""

    settings: Settings
    trace: Trace
    words: Words
    cache_mib: int
    live_mib: int

    @property
    def n_ctx(self) -> int:
        """Tokens that one text has room for, on either side."""
        return -(-max(self.trace.room, WARM_UP + 1) // PAGE) * PAGE

    @property
    def warm_up(self) -> list[int]:
        """A prompt that shares nothing with the trace's."""
        return list(self.words.text("warm-up", WARM_UP))


@dataclass(frozen=True)
class Measurement:
    """One arm; an entry for each request. unseen: tokens that no text before begins with. first_token: seconds.
    resident: the most bytes that the process had in memory, weights included."""

    prompt: list[int]
    unseen: list[int]
    read: list[int]
    first_token: list[float]
    resident: int


def prepare(settings: Settings, names: Sequence[str]) -> list[Case]:
    """The traces. To be run in a process of its own: the model is loaded for it."""
    with LLM(settings.model, n_ctx=WARM_UP, n_threads=settings.threads) as llm:
        cell_bytes, state_bytes = llm.context.cell_bytes, llm.context.state_bytes
        words = Words.of(llm.model, settings.scale)
    cases = []
    for name in names:
        trace = make(name, words)
        need = half_of(trace, cell_bytes, state_bytes)
        if settings.requests is not None:
            trace = trace.begun(settings.requests)
        live = LIVE * settings.n_seq_max * state_bytes // MIB
        cases.append(Case(settings, trace, words, settings.cache_mib if need is None else -(-need // MIB), live))
    return cases


def measure_server(program: Path, case: Case, options: Mapping[str, str | int]) -> Measurement:
    """One run of llama-server. Raises ServerError."""
    texts, asked = Texts(), list[tuple[Ask, list[int], Answer]]()
    with (
        llama_server.start(
            program,
            case.settings.model,
            parallel=case.settings.n_seq_max,
            threads=case.settings.threads,
            ctx_size=case.n_ctx * case.settings.n_seq_max,
            ctx_checkpoints=CHECKPOINTS,
            **options,
        ) as server,
        ThreadPoolExecutor(case.settings.n_seq_max) as clients,
    ):

        def ask(request: Ask, prompt: list[int]) -> Answer:
            return server.complete(prompt, request.tokens, cache=True, user=USER)

        server.complete(case.warm_up, 1)
        for wave in case.trace.waves:
            prompts = [texts.prompt(request) for request in wave]
            for request, prompt, answer in zip(wave, prompts, clients.map(ask, wave, prompts), strict=True):
                texts.answered(request, prompt, answer.token_ids)
                asked.append((request, prompt, answer))
        peak = resident(server.pid)
    prompts = [prompt for _, prompt, _ in asked]
    return Measurement(
        prompt=[len(prompt) for prompt in prompts],
        unseen=unseen(prompts, [answer.token_ids for _, _, answer in asked]),
        read=[answer.read for _, _, answer in asked],
        first_token=[answer.waited for _, _, answer in asked],
        resident=peak,
    )


def measure_pymtp(case: Case) -> Measurement:
    """One run of pymtp. To be run in a process of its own."""
    settings = case.settings
    with LLM(
        settings.model,
        n_ctx=case.n_ctx,
        n_seq_max=settings.n_seq_max,
        n_threads=settings.threads,
        cache_bytes=case.cache_mib * MIB,
    ) as llm:
        llm.generate(case.warm_up, SamplingParams(max_tokens=1))
        asked = Asked(llm)
        for wave in case.trace.waves:
            asked.ask(wave)
    return Measurement(
        prompt=[len(prompt) for prompt in asked.prompts],
        unseen=unseen(asked.prompts, asked.answers),
        read=asked.read,
        first_token=asked.first_token,
        resident=resident(),
    )


def server_options(case: Case) -> dict[str, dict[str, str | int]]:
    """Of each arm."""
    rest = {"cache_ram": max(1, case.cache_mib - case.live_mib)}  # 0 means none, and less no limit
    found = {arm: options | rest for arm, options in SERVER_ARMS.items()}
    return found | {MORE: {"ubatch_size": 256, "cache_ram": case.cache_mib}}


def measure(case: Case, n: int, program: Path) -> list[dict[str, Measurement]]:
    """n rounds of the arms. Says on stderr how it goes."""
    arms: dict[str, Callable[[], Measurement]] = {
        arm: partial(measure_server, program, case, options) for arm, options in server_options(case).items()
    }
    arms[PYMTP] = partial(in_a_process, measure_pymtp, case)
    found: list[dict[str, Measurement]] = []
    for measured in rounds(arms, n):
        found.append(measured)
        said = ", ".join(f"{arm} {sum(m.read):,}" for arm, m in measured.items())
        screen.print(f"{case.trace.name}, round {len(found)} of {n}: tokens read: {said}")
    return found


def summary(found: Sequence[dict[str, Measurement]]) -> dict[str, Any]:
    """Medians over the rounds by arm, and of pymtp's ratio to llama-server's best arm with as much memory: the one that
    read the fewest tokens. first_token: seconds to all first tokens together."""

    def middle(value: Callable[[Measurement], float]) -> dict[str, float]:
        return {arm: statistics.median(value(measured[arm]) for measured in found) for arm in found[0]}

    read, first_token = middle(lambda m: sum(m.read)), middle(lambda m: sum(m.first_token))
    best = min(SERVER_ARMS, key=read.__getitem__)
    pairs = [(measured[PYMTP], measured[best]) for measured in found]
    return {
        "prompt": middle(lambda m: sum(m.prompt)),
        "unseen": middle(lambda m: sum(m.unseen)),
        "read": read,
        "first_token": first_token,
        "resident": middle(lambda m: m.resident),
        "best_of_llama_server": best,
        "read_ratio": statistics.median(sum(ours.read) / sum(theirs.read) for ours, theirs in pairs),
        "first_token_ratio": statistics.median(
            sum(ours.first_token) / sum(theirs.first_token) for ours, theirs in pairs
        ),
    }


def table(case: Case, told: dict[str, Any]) -> Table:
    """A line for each arm."""
    title = f"{case.settings.model.name}, {case.trace.name}, host memory {case.cache_mib} MiB"
    lines = Table(
        "", "tokens", "new", "read", "pymtp / it", "first tokens, s", "pymtp / it", "resident, MiB", title=title
    )
    for column in lines.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for arm, read in told["read"].items():
        seconds = told["first_token"][arm]
        lines.add_row(
            arm,
            f"{told['prompt'][arm]:,.0f}",
            f"{told['unseen'][arm]:,.0f}",
            f"{read:,.0f}",
            f"{told['read'][PYMTP] / read:.3f}",
            f"{seconds:.2f}",
            f"{told['first_token'][PYMTP] / seconds:.3f}",
            f"{told['resident'][arm] / MIB:,.0f}",
        )
    return lines


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    traces: Annotated[str, typer.Option(help="What is asked.")] = "prefixes,messages",
    pairs: Annotated[int, typer.Option("--pairs", "-r", min=1, help="Measurements of each kind.")] = 1,
    n_seq_max: Annotated[int, typer.Option("--n-seq-max", "-s", min=1, help="Texts at once, slots of the server.")] = 4,
    cache: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="Host memory for prefixes, where a trace does not say it.")
    ] = 2048,
    scale: Annotated[float, typer.Option(min=0.001, help="Of all lengths in the traces.")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="The first requests of each trace.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")] = None,
    patched: Annotated[bool, typer.Option("--patched", help="A llama-server with all of pymtp's patches.")] = False,
    output: Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")] = None,
) -> None:
    """Compare what pymtp and llama-server read of prompts that begin alike."""
    settings = Settings(model or demo_model(), n_seq_max, threads or default_threads(), cache, scale, requests)
    results: list[dict[str, Any]] = []
    try:
        names = traces.split(",")
        if unknown := set(names) - ({*NAMES} - {DISK}):
            raise InvalidRequestError(f"no trace is called {', '.join(sorted(unknown))}")
        program = llama_server.build(patched=patched)
        for case in in_a_process(partial(prepare, settings, names)):
            found = measure(case, pairs, program)
            told = summary(found)
            Console(highlight=False, width=max(Console().width, 120)).print(table(case, told))
            measured = [{arm: asdict(m) for arm, m in each.items()} for each in found]
            given = {"cache_mib": case.cache_mib, "server_options": server_options(case)}
            results.append({"trace": case.trace.name, **given, **told, "rounds": measured})
            if output is not None:  # after each trace: what is done is not lost
                output.write_text(as_json(settings, results, patched=patched) + "\n")
    except (BuildError, ServerError, PymtpError) as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)


def as_json(settings: Settings, results: list[dict[str, Any]], *, patched: bool) -> str:
    """All traces, and what they were measured with and on."""
    record = {
        "bench": "prefixes against llama-server",
        "settings": asdict(settings) | {"model": settings.model.name},
        "ctx_checkpoints": CHECKPOINTS,
        "patched_server": patched,
        "traces": results,
        "machine": machine(),
        "build": build_info(),
    }
    return json.dumps(record, indent=1)


if __name__ == "__main__":
    typer.run(main)
