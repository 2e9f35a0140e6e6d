"""Compare pymtp and llama-server on prompts with common prefixes: the same llama.cpp, model file and traces.

    pip install . typer
    python tools/models/make_model.py qwen3.5-0.8b build/08b4.gguf --type q4_0 --layers 4 --vocab 8192
    python tools/bench/bench_prefix.py --model build/08b4.gguf --traces prefixes,messages
    python tools/bench/bench_prefix.py --traces chat,agents,document,four,at-once

Traces are those of `pymtp bench prefix`. Prompts are token ids, the same on both sides except for generated tokens;
answers have the same number of tokens. Both sides have the same number of slots, the same context, and the same host
memory for prefixes. For traces over several prefixes, half of them fit: K and V of their tokens, and one state each.

llama-server is built from the pinned sources and runs without drafts, so it needs no K and V of the head; pymtp runs
with its head. llama-server saves idle slots, and keeps up to 32 checkpoints per slot (--ctx-checkpoints). Those of live
slots do not count for --cache-ram, though they are host memory, and pymtp's count for cache_bytes: so two per slot are
subtracted from --cache-ram, as it makes two or three for each prompt. One arm gets all of the memory as --cache-ram,
for comparison. Requests tell llama-server where user messages begin, as its chat endpoint finds it with the template.
It runs with its default ubatch of 512 tokens and with less, as it makes its last checkpoints one ubatch and 4 tokens
before the end of a prompt. --cache-reuse does not work for hybrid models. pymtp is compared with the arm of the same
memory that read the fewest tokens.

Every measurement is a process of its own, warmed up with one prompt. Each round has one measurement of each arm, in
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
from peer import in_a_process, peak_resident_bytes, rounds
from rich.console import Console
from rich.table import Table

from pymtp import LLM, InvalidRequestError, PymtpError, SamplingParams, build_info
from pymtp.bench.machine import machine
from pymtp.bench.prefix import WARM_UP, TraceRun, half_of_prefix_bytes
from pymtp.bench.traces import DISK, NAMES, USER, Trace, TraceHistory, TraceRequest, TraceVocabulary, make, unseen
from pymtp.model.model import demo_model
from pymtp.native.cores import default_threads

screen = Console(stderr=True, highlight=False)

PYMTP, SERVER = "pymtp", "llama-server"
# options of each arm beside those of all arms; the first has llama-server's defaults
SERVER_ARMS: dict[str, dict[str, str | int]] = {
    SERVER: {},
    f"{SERVER}, ubatch 256": {"ubatch_size": 256},
    f"{SERVER}, ubatch 128": {"ubatch_size": 128},
}
MORE = f"{SERVER}, ubatch 256, more memory"  # live checkpoints are not subtracted from its memory
CHECKPOINTS = 32  # per slot, llama-server's default
LIVE = 2  # checkpoints of a live slot that are subtracted from the memory
MIB = 2**20
PAGE = 256  # tokens that contexts are rounded up to


@dataclass(frozen=True)
class Settings:
    """Settings of both sides.

    cache_mib: for traces without a fixed number of prefixes. scale: factor of lengths. requests: limit per trace.
    """

    model: Path
    n_seq_max: int
    threads: int
    cache_mib: int
    scale: float
    requests: int | None


@dataclass(frozen=True)
class Case:
    """A trace, and the host memory for its prefixes. live_mib: the part for checkpoints of live slots."""

    settings: Settings
    trace: Trace
    vocabulary: TraceVocabulary
    cache_mib: int
    live_mib: int

    @property
    def n_ctx(self) -> int:
        """Return the context of one text, on both sides."""
        return -(-max(self.trace.max_length, WARM_UP + 1) // PAGE) * PAGE

    @property
    def warm_up(self) -> list[int]:
        """Return a prompt that shares nothing with those of the trace."""
        return list(self.vocabulary.text("warm-up", WARM_UP))


@dataclass(frozen=True)
class Measurement:
    """The measurement of one arm, with an entry for each request.

    unseen: tokens after the longest prefix shared with an earlier text. read: prefilled tokens. first_token: seconds.
    resident: peak of the process's memory in bytes, with the weights.
    """

    prompt: list[int]
    unseen: list[int]
    read: list[int]
    first_token: list[float]
    resident: int


def prepare(settings: Settings, names: Sequence[str]) -> list[Case]:
    """Make the cases of traces. Call it in a new process, as it loads the model."""
    with LLM(settings.model, n_ctx=WARM_UP, n_threads=settings.threads) as llm:
        cell_bytes, state_bytes = llm.context.cell_bytes, llm.context.state_bytes
        vocabulary = TraceVocabulary.of(llm.model, settings.scale)
    cases = []
    for name in names:
        trace = make(name, vocabulary)
        need = half_of_prefix_bytes(trace, cell_bytes, state_bytes)
        if settings.requests is not None:
            trace = trace.first(settings.requests)
        live = LIVE * settings.n_seq_max * state_bytes // MIB
        cases.append(Case(settings, trace, vocabulary, settings.cache_mib if need is None else -(-need // MIB), live))
    return cases


def measure_server(program: Path, case: Case, options: Mapping[str, str | int]) -> Measurement:
    """Measure a run of llama-server. Raises ServerError."""
    history, answered = TraceHistory(), list[tuple[TraceRequest, list[int], Answer]]()
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

        def complete(request: TraceRequest, prompt: list[int]) -> Answer:
            return server.complete(prompt, request.tokens, cache=True, user=USER)

        server.complete(case.warm_up, 1)
        for wave in case.trace.waves:
            prompts = [history.prompt(request) for request in wave]
            for request, prompt, answer in zip(wave, prompts, clients.map(complete, wave, prompts), strict=True):
                history.add(request, prompt, answer.token_ids)
                answered.append((request, prompt, answer))
        peak = peak_resident_bytes(server.pid)
    prompts = [prompt for _, prompt, _ in answered]
    return Measurement(
        prompt=[len(prompt) for prompt in prompts],
        unseen=unseen(prompts, [answer.token_ids for _, _, answer in answered]),
        read=[answer.read for _, _, answer in answered],
        first_token=[answer.waited for _, _, answer in answered],
        resident=peak,
    )


def measure_pymtp(case: Case) -> Measurement:
    """Measure a run of pymtp. Call it in a new process."""
    settings = case.settings
    with LLM(
        settings.model,
        n_ctx=case.n_ctx,
        n_seq_max=settings.n_seq_max,
        n_threads=settings.threads,
        cache_bytes=case.cache_mib * MIB,
    ) as llm:
        llm.generate(case.warm_up, SamplingParams(max_tokens=1))
        run = TraceRun(llm)
        for wave in case.trace.waves:
            run.run_wave(wave)
    return Measurement(
        prompt=[len(prompt) for prompt in run.prompts],
        unseen=unseen(run.prompts, run.answers),
        read=run.read,
        first_token=run.first_token,
        resident=peak_resident_bytes(),
    )


def server_options(case: Case) -> dict[str, dict[str, str | int]]:
    """Return the options of each arm of llama-server."""
    memory = {"cache_ram": max(1, case.cache_mib - case.live_mib)}  # 0 would mean no cache, and -1 no limit
    arms = {arm: options | memory for arm, options in SERVER_ARMS.items()}
    return arms | {MORE: {"ubatch_size": 256, "cache_ram": case.cache_mib}}


def measure(case: Case, n: int, program: Path) -> list[dict[str, Measurement]]:
    """Measure n rounds of all arms. Print the progress on stderr."""
    arms: dict[str, Callable[[], Measurement]] = {
        arm: partial(measure_server, program, case, options) for arm, options in server_options(case).items()
    }
    arms[PYMTP] = partial(in_a_process, measure_pymtp, case)
    results: list[dict[str, Measurement]] = []
    for measured in rounds(arms, n):
        results.append(measured)
        shown = ", ".join(f"{arm} {sum(m.read):,}" for arm, m in measured.items())
        screen.print(f"{case.trace.name}, round {len(results)} of {n}: tokens read: {shown}")
    return results


def summary(results: Sequence[dict[str, Measurement]]) -> dict[str, Any]:
    """Return medians over the rounds by arm, and pymtp's ratio to llama-server's best arm with the same memory.

    The best arm is the one that read the fewest tokens. first_token: sum of the seconds to all first tokens.
    """

    def medians(value: Callable[[Measurement], float]) -> dict[str, float]:
        return {arm: statistics.median(value(measured[arm]) for measured in results) for arm in results[0]}

    read, first_token = medians(lambda m: sum(m.read)), medians(lambda m: sum(m.first_token))
    best = min(SERVER_ARMS, key=read.__getitem__)
    pairs = [(measured[PYMTP], measured[best]) for measured in results]
    return {
        "prompt": medians(lambda m: sum(m.prompt)),
        "unseen": medians(lambda m: sum(m.unseen)),
        "read": read,
        "first_token": first_token,
        "resident": medians(lambda m: m.resident),
        "best_of_llama_server": best,
        "read_ratio": statistics.median(sum(own.read) / sum(peer.read) for own, peer in pairs),
        "first_token_ratio": statistics.median(sum(own.first_token) / sum(peer.first_token) for own, peer in pairs),
    }


def table(case: Case, medians: dict[str, Any]) -> Table:
    """Make a table with a line for each arm."""
    title = f"{case.settings.model.name}, {case.trace.name}, host memory {case.cache_mib} MiB"
    lines = Table(
        "", "tokens", "new", "read", "pymtp / it", "first tokens, s", "pymtp / it", "resident, MiB", title=title
    )
    for column in lines.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for arm, read in medians["read"].items():
        seconds = medians["first_token"][arm]
        lines.add_row(
            arm,
            f"{medians['prompt'][arm]:,.0f}",
            f"{medians['unseen'][arm]:,.0f}",
            f"{read:,.0f}",
            f"{medians['read'][PYMTP] / read:.3f}",
            f"{seconds:.2f}",
            f"{medians['first_token'][PYMTP] / seconds:.3f}",
            f"{medians['resident'][arm] / MIB:,.0f}",
        )
    return lines


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    traces: Annotated[str, typer.Option(help="Traces to run, separated by commas.")] = "prefixes,messages",
    pairs: Annotated[int, typer.Option("--pairs", "-r", min=1, help="Measurements of each kind.")] = 1,
    n_seq_max: Annotated[int, typer.Option("--n-seq-max", "-s", min=1, help="Texts at once, slots of the server.")] = 4,
    cache: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="Host memory for prefixes, where a trace does not say it.")
    ] = 2048,
    scale: Annotated[float, typer.Option(min=0.001, help="Factor of all lengths in the traces.")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="The first requests of each trace.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")] = None,
    patched: Annotated[bool, typer.Option("--patched", help="A llama-server with all of pymtp's patches.")] = False,
    output: Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")] = None,
) -> None:
    """Compare the tokens that pymtp and llama-server prefill of prompts with common prefixes."""
    settings = Settings(model or demo_model(), n_seq_max, threads or default_threads(), cache, scale, requests)
    results: list[dict[str, Any]] = []
    try:
        names = traces.split(",")
        if unknown := set(names) - ({*NAMES} - {DISK}):
            raise InvalidRequestError(f"no trace is called {', '.join(sorted(unknown))}")
        program = llama_server.build(patched=patched)
        for case in in_a_process(partial(prepare, settings, names)):
            measured_rounds = measure(case, pairs, program)
            medians = summary(measured_rounds)
            Console(highlight=False, width=max(Console().width, 120)).print(table(case, medians))
            measured = [{arm: asdict(m) for arm, m in arms.items()} for arms in measured_rounds]
            memory = {"cache_mib": case.cache_mib, "server_options": server_options(case)}
            results.append({"trace": case.trace.name, **memory, **medians, "rounds": measured})
            if output is not None:  # after each trace, so that no result is lost
                output.write_text(as_json(settings, results, patched=patched) + "\n")
    except (BuildError, ServerError, PymtpError) as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)


def as_json(settings: Settings, results: list[dict[str, Any]], *, patched: bool) -> str:
    """Format the results of all traces, the settings and the environment as JSON."""
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
