"""Compare pymtp and llama-server on prompts with common prefixes: the same llama.cpp, model file and traces.

    pip install . typer
    python tools/models/make_model.py qwen3.5-0.8b build/08b4.gguf --type q4_0 --layers 4 --vocab 8192
    python tools/bench/bench_prefix.py --model build/08b4.gguf --traces prefixes,messages
    python tools/bench/bench_prefix.py --traces chat,agents,document,four,at-once

Traces are those of `pymtp bench prefix`. docs/how-to/measure.md has the conditions: slots, memory, checkpoints,
ubatches. Every measurement is a process of its own, warmed up with one prompt. Each round has one measurement of
each arm, in alternating order.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import llama_server
import typer
from llama_server import Answer
from peer import (
    PAGE,
    Comparison,
    ModelFile,
    Output,
    Pairs,
    Patched,
    Threads,
    errors_shown,
    in_a_process,
    show,
    write_json,
)

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.bench.machine import memory_status
from pymtp.bench.prefix import WARM_UP, TraceRun, half_of_prefix_bytes
from pymtp.bench.table import Column, Table
from pymtp.bench.traces import DISK, NAMES, USER, Trace, TraceHistory, TraceRequest, TraceVocabulary, make, unseen
from pymtp.model.model import demo_model
from pymtp.native.cores import default_threads

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

    @property
    def seconds(self) -> float:
        """Return the sum of the seconds to all first tokens."""
        return sum(self.first_token)


def prepare(settings: Settings, names: Sequence[str]) -> list[Case]:
    """Make the cases of traces. Call it in a new process, as it loads the model."""
    with LLM(settings.model, n_ctx=WARM_UP, n_threads=settings.threads) as llm:
        cell_bytes, state_bytes = llm.context.state.cell_bytes, llm.context.state.max_bytes
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
        peak = memory_status("VmHWM", server.pid)
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
        resident=memory_status("VmHWM"),
    )


def server_options(case: Case) -> dict[str, dict[str, str | int]]:
    """Return the options of each arm of llama-server."""
    memory = {"cache_ram": max(1, case.cache_mib - case.live_mib)}  # 0 would mean no cache, and -1 no limit
    arms = {arm: options | memory for arm, options in SERVER_ARMS.items()}
    return arms | {MORE: {"ubatch_size": 256, "cache_ram": case.cache_mib}}


def measure(case: Case, n: int, program: Path) -> Comparison[Measurement]:
    """Measure n rounds of all arms."""
    arms: dict[str, Callable[[], Measurement]] = {
        arm: partial(measure_server, program, case, options) for arm, options in server_options(case).items()
    }
    arms[PYMTP] = partial(in_a_process, measure_pymtp, case)
    results = Comparison[Measurement](lambda m: sum(m.read))
    for _ in results.run(f"{case.trace.name}, tokens read", arms, n):
        pass
    return results


def summary(results: Comparison[Measurement]) -> dict[str, Any]:
    """Return medians over the rounds by arm, and pymtp's ratio to llama-server's best arm with the same memory.

    The best arm is the one that read the fewest tokens. first_token: sum of the seconds to all first tokens.
    """
    read = results.medians()
    best = min(SERVER_ARMS, key=read.__getitem__)
    return {
        "prompt": results.medians(lambda m: sum(m.prompt)),
        "unseen": results.medians(lambda m: sum(m.unseen)),
        "read": read,
        "first_token": results.medians(lambda m: m.seconds),
        "resident": results.medians(lambda m: m.resident),
        "best_of_llama_server": best,
        "read_ratio": statistics.median(results.ratios(PYMTP, best)),
        "first_token_ratio": statistics.median(results.ratios(PYMTP, best, lambda m: m.seconds)),
    }


def table(case: Case, found: dict[str, Any]) -> Table:
    """Make a table with a line for each arm."""
    title = f"{case.settings.model.name}, {case.trace.name}, host memory {case.cache_mib} MiB"
    columns = [
        Column("", lambda arm: arm),
        Column("tokens", lambda arm: found["prompt"][arm], ",.0f"),
        Column("new", lambda arm: found["unseen"][arm], ",.0f"),
        Column("read", lambda arm: found["read"][arm], ",.0f"),
        Column("pymtp / it", lambda arm: found["read"][PYMTP] / found["read"][arm], ".3f"),
        Column("first tokens, s", lambda arm: found["first_token"][arm], ".2f"),
        Column("pymtp / it", lambda arm: found["first_token"][PYMTP] / found["first_token"][arm], ".3f"),
        Column("resident, MiB", lambda arm: found["resident"][arm] / MIB, ",.0f"),
    ]
    return Table(title, columns, list(found["read"]))


def main(
    model: ModelFile = None,
    traces: Annotated[str, typer.Option(help="Traces to run, separated by commas.")] = "prefixes,messages",
    pairs: Pairs = 1,
    n_seq_max: Annotated[int, typer.Option("--n-seq-max", "-s", min=1, help="Texts at once, slots of the server.")] = 4,
    cache: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="Host memory for prefixes, where a trace does not say it.")
    ] = 2048,
    scale: Annotated[float, typer.Option(min=0.001, help="Factor of all lengths in the traces.")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="The first requests of each trace.")] = None,
    threads: Threads = None,
    patched: Patched = False,
    output: Output = None,
) -> None:
    """Compare the tokens that pymtp and llama-server prefill of prompts with common prefixes."""
    settings = Settings(model or demo_model(), n_seq_max, threads or default_threads(), cache, scale, requests)
    written: list[dict[str, Any]] = []
    with errors_shown():
        names = traces.split(",")
        if unknown := set(names) - ({*NAMES} - {DISK}):
            raise InvalidRequestError(f"no trace is called {', '.join(sorted(unknown))}")
        program = llama_server.build(patched=patched)
        for case in in_a_process(partial(prepare, settings, names)):
            results = measure(case, pairs, program)
            found = summary(results)
            show(table(case, found))
            memory = {"cache_mib": case.cache_mib, "server_options": server_options(case)}
            written.append({"trace": case.trace.name, **memory, **found, "rounds": results.as_dicts()})
            write_json(  # after each trace, so that no result is lost
                output,
                "prefixes against llama-server",
                settings=asdict(settings) | {"model": settings.model.name},
                ctx_checkpoints=CHECKPOINTS,
                patched_server=patched,
                traces=written,
            )


if __name__ == "__main__":
    typer.run(main)
