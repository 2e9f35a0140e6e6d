"""Counts the tokens that concurrent requests change: requests that run together against each of them alone.

    pip install . gguf typer
    python tools/checks/concurrency.py --tokens 200000

Random requests of all kinds (random_requests.py) arrive at one LLM with 2 to 8 sequences: by lists, streams, threads
and an AsyncLLM; some are cancelled, some fail. Each request is then repeated on a new LLM with one sequence, in half of
the games without drafts. Tokens, log-probabilities (bit for bit), text and finish reason must be the same; for a
cancelled request, the beginning. Models: random weights of each type, dense and with experts, and the shipped model
with its F16 and F32 twins, whose drafts are accepted.

A difference is printed with the options that reproduce its game: --model NAME --seed N --tokens 1. Games with threads,
and games that choose depths by measured times, may run differently each time.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from random_requests import Outcome, RequestGenerator, RequestSpec, describe_error, outcome
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pymtp import LLM, AsyncLLM, Model, PymtpError, build_info
from pymtp.engine.request import Request, Waiter
from pymtp.engine.scheduler import MAX_UNREAD_PIECES
from pymtp.model.model import demo_model
from pymtp.sampling import TokenLogprobs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts
from makers.gguf_variants import rewrite
from makers.make_model import make_model
from makers.model_shapes import PRESETS

# Rows of whole superblocks, in multiples of eight, so that every type runs its own kernels.
DENSE = replace(PRESETS["7m"], n_layer=4, linear_v_heads=8, n_ff=512)
EXPERTS = replace(DENSE, n_ff=0, n_expert=8, n_expert_used=2, n_ff_expert=256, n_ff_shared=256, tied=False)
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "iq4_nl", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")
MODELS = [
    "shipped",
    "shipped f16",
    "shipped f32",
    *(f"{kind} {name}" for kind in TYPES for name in ("dense", "experts")),
]
REQUESTS = 32  # per game
SPAN = 40  # steps within which requests arrive
MOMENT = 0.002  # seconds per step, for threads

Outcomes = dict[tuple[int, int], Outcome]  # by request number and completion


@dataclass
class GameResults:
    """The results of a model's games."""

    model: str
    requests: int = 0
    tokens: int = 0
    logprobs: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    sequences: int = 0  # summed over all rounds
    differing_tokens: int = 0
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0


def model_file(name: str, directory: Path) -> Path:
    """Return the file of one of MODELS, and make it if it does not exist."""
    kind, _, which = name.partition(" ")
    if name == "shipped":
        return demo_model()
    path = directory / f"{name.replace(' ', '-')}.gguf"
    if not path.exists():
        if kind == "shipped":
            rewrite(demo_model(), path, weights=which)  # type: ignore[arg-type]
        else:
            make_model(EXPERTS if which == "experts" else DENSE, path, weight_type=kind, threads=1)
    return path


def any_settings(numbers: random.Random) -> dict[str, Any]:
    """Return random options of an LLM, except n_seq_max."""
    cache = numbers.choice(("f16", "f16", "f16", "bf16", "f32", "q8_0"))
    n_ubatch = numbers.choice((32, 64, 128, 512))
    return {
        "n_ctx": numbers.choice((256, 512, 1024)),
        "n_batch": n_ubatch,
        "n_ubatch": n_ubatch,
        "n_threads": 1,
        "type_k": cache,
        "type_v": cache,
        "flash_attn": "on" if cache == "q8_0" else numbers.choice(("auto", "on", "off")),
        "draft_tokens": numbers.choice(("auto", *range(8))),
        "cache_prompt": False,  # splitting a prompt changes bits: see docs/exactness.md
    }


def by_steps(llm: LLM, specs: Sequence[RequestSpec], numbers: random.Random) -> Outcomes:
    """Run the engine step by step, so that `numbers` decides on everything."""
    coming = list(specs)
    asked: dict[int, list[Request]] = {}
    left: set[int] = set()
    for step in range(1_000_000):
        while coming and coming[0].arrival_step <= step:
            spec = coming.pop(0)
            max_unread = MAX_UNREAD_PIECES if spec.call == "stream" else None
            asked[spec.number] = llm._submit(
                [spec.prompt],
                spec.params,
                Waiter(),
                priority=spec.priority,
                max_unread=max_unread,
                branch_points=[spec.branch_points] if spec.branch_points else (),
            )
        for spec in specs:
            for request in asked.get(spec.number, ()):
                if spec.cancel_after is not None and len(request.tokens) >= spec.cancel_after:
                    llm._engine.cancel(request)
                    left.add(spec.number)
                if numbers.random() < 0.8:  # otherwise, its reader is slow
                    request.unread.clear()
        llm._engine.step()
        if not coming and all(request.ended for requests in asked.values() for request in requests):
            break
    return {(n, i): outcome(request) for n, requests in asked.items() for i, request in enumerate(requests)}


def by_threads(llm: LLM, specs: Sequence[RequestSpec], numbers: random.Random) -> Outcomes:
    """Make the requests from three threads and an event loop at once."""
    found: Outcomes = {}
    parts: list[list[RequestSpec]] = [[], [], [], []]
    for spec in specs:
        numbers.choice(parts).append(spec)

    def work(part: list[RequestSpec]) -> None:
        while part:
            spec = part.pop(0)
            group = [spec]
            while spec.call == "list" and part and part[0].call == "list":
                group.append(part.pop(0))
            time.sleep(MOMENT * (spec.arrival_step % 10))
            if spec.call == "stream":
                _read(llm, spec, found)
            else:
                _generate(llm, group, found)

    threads = [threading.Thread(target=work, args=(part,)) for part in parts[:3]]
    for thread in threads:
        thread.start()
    asyncio.run(_loop(llm, parts[3], found))
    for thread in threads:
        thread.join()
    return found


def _generate(llm: LLM, group: Sequence[RequestSpec], found: Outcomes) -> None:
    try:
        done: Sequence[Any] = llm.generate(
            [spec.prompt for spec in group], [spec.params for spec in group], priority=group[0].priority
        )
    except PymtpError as error:
        done = error.completions
    _keep(group, done, found)


def _keep(group: Sequence[RequestSpec], done: Sequence[Any], found: Outcomes) -> None:
    for spec, one in zip(group, done, strict=True):
        if not isinstance(one, PymtpError):  # the tokens before an error are not returned
            for i, completion in enumerate((one, *one.others)):
                found[spec.number, i] = outcome(completion)
        elif spec.params.n == 1:
            found[spec.number, 0] = Outcome([], "", "failed", None, describe_error(one))


def _read(llm: LLM, spec: RequestSpec, found: Outcomes) -> None:
    tokens, error = 0, ""
    with llm.stream(spec.prompt, spec.params, priority=spec.priority) as stream:
        try:
            for piece in stream:
                tokens += len(piece.token_ids)
                if spec.cancel_after is not None and tokens >= spec.cancel_after:
                    break
        except PymtpError as raised:
            error = describe_error(raised)
    done = outcome(stream.completion)
    found[spec.number, 0] = replace(done, reason="failed", error=error) if error else done


async def _loop(llm: LLM, part: Sequence[RequestSpec], found: Outcomes) -> None:
    async with AsyncLLM(llm) as shared:

        async def ask(spec: RequestSpec) -> None:
            await asyncio.sleep(MOMENT * spec.arrival_step)
            if spec.call == "stream":
                found[spec.number, 0] = await _pieces(shared, spec)
                return
            longest = None if spec.cancel_after is None else MOMENT * spec.cancel_after
            try:
                asked = shared.generate(spec.prompt, spec.params, priority=spec.priority)
                _keep([spec], [await asyncio.wait_for(asked, longest)], found)
            except PymtpError as error:
                _keep([spec], [error], found)
            except TimeoutError:
                return  # it was cancelled

        await asyncio.gather(*(ask(spec) for spec in part))


async def _pieces(llm: AsyncLLM, spec: RequestSpec) -> Outcome:
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] | None = None if spec.params.logprobs is None else []
    error = ""
    stream = llm.stream(spec.prompt, spec.params, priority=spec.priority)
    try:
        async for piece in stream:
            tokens += piece.token_ids
            if logprobs is not None:
                logprobs += piece.logprobs or []
            if spec.cancel_after is not None and len(tokens) >= spec.cancel_after:
                break
        await stream.aclose()  # type: ignore[attr-defined]
    except PymtpError as raised:
        error = describe_error(raised)
    # pieces do not give the finish reason: they are compared as a beginning
    return Outcome(tokens, "", "failed" if error else "pieces", logprobs, error)


def alone(model: Model, settings: dict[str, Any], spec: RequestSpec, i: int) -> Outcome:
    """Return the outcome of one completion of a request on a new LLM."""
    with LLM(model, n_seq_max=1, **settings) as llm:
        (request,) = llm._submit([spec.prompt], spec.completions_params[i], Waiter())
        while not request.ended:
            llm._engine.step()
        return outcome(request)


def game(model: Model, texts: Sequence[Sequence[int]], seed: int, found: GameResults) -> None:
    """Run one game, and compare its requests with each of them alone."""
    numbers = random.Random(seed)
    settings = any_settings(numbers)
    specs = RequestGenerator(model, numbers, texts, settings["n_ctx"]).make_many(REQUESTS, SPAN)
    play = by_threads if seed % 3 == 2 else by_steps
    with LLM(model, n_seq_max=numbers.randint(2, 8), **settings) as llm:
        together = play(llm, specs, numbers)
        figures = llm.figures()
    found.rounds += figures.rounds
    found.drafted += figures.drafted
    found.accepted += figures.accepted
    found.sequences += sum(n * times for n, times in figures.sequences.items())
    apart = settings | ({"draft_tokens": 0} if numbers.random() < 0.5 else {})
    for (number, i), one in sorted(together.items()):
        whole = alone(model, apart, specs[number], i)
        found.requests += 1
        found.tokens += len(one.token_ids)
        found.logprobs += len(one.logprobs or ())
        found.ends[one.reason] = found.ends.get(one.reason, 0) + 1
        if difference := one.difference(whole):
            pairs = zip(one.token_ids, whole.token_ids, strict=False)
            found.differing_tokens += max(1, sum(a != b for a, b in pairs))
            found.differences.append(
                f"{found.model}, seed {seed}, {play.__name__}, {settings}, request {number}.{i}: {difference}"
            )


def games(job: tuple[str, Path, int, int]) -> GameResults:
    """Run games with one model until enough tokens are compared. job: model name, folder, tokens, seed."""
    name, directory, tokens, seed = job
    found = GameResults(name)
    started = time.perf_counter()
    with closing(Model(model_file(name, directory))) as model:
        texts = [model.tokenize(text) for text in held_out_prompts(12, 3000)]
        while found.tokens < tokens:
            game(model, texts, seed, found)
            seed += 1
    found.seconds = time.perf_counter() - started
    return found


def show(all_results: Sequence[GameResults], console: Console) -> None:
    """Print a line for each model, and the differences below."""
    table = Table("model", "requests", "left", "failed", "tokens", "logprobs", "together", "accepted", "differ", "s")
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for one in all_results:
        table.add_row(
            one.model,
            f"{one.requests:,}",
            f"{one.ends.get('cancelled', 0):,}",
            f"{one.ends.get('failed', 0):,}",
            f"{one.tokens:,}",
            f"{one.logprobs:,}",
            f"{one.sequences / max(1, one.rounds):.1f}",
            f"{one.accepted / max(1, one.drafted):.0%}",
            f"{one.differing_tokens:,}",
            f"{one.seconds:.0f}",
        )
    console.print(table)
    for one in all_results:
        for difference in one.differences:
            console.print(difference, soft_wrap=True)
    tokens = sum(one.tokens for one in all_results)
    console.print(f"{sum(one.differing_tokens for one in all_results):,} of {tokens:,} tokens differ")


def in_processes(jobs: Sequence[Any], processes: int) -> Iterator[GameResults]:
    """Run each job in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap(games, jobs, chunksize=1)


def main(
    models: Annotated[list[str] | None, typer.Option("--model", "-m", help=f"All if not given: {MODELS}.")] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", "-n", min=1, help="Tokens to compare, for all together.")
    ] = 200_000,
    seed: Annotated[int, typer.Option(help="Seed of the first game.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Models at a time.")] = 2,
    output: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Compare concurrent requests with single ones; exit with status 1 if a token differs."""
    console = Console(highlight=False)
    names = models or MODELS
    with tempfile.TemporaryDirectory() as directory:
        jobs = [(name, Path(directory), -(-tokens // len(names)), seed + 1000 * i) for i, name in enumerate(names)]
        running = track(in_processes(jobs, processes), total=len(jobs), console=Console(stderr=True))
        found = list(running)
    show(found, console)
    if output is not None:
        result = {"check": "company", "seed": seed, "build": build_info(), "models": [asdict(one) for one in found]}
        output.write_text(json.dumps(result, indent=1) + "\n")
    if any(one.differences for one in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
