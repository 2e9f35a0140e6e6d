"""Many requests at once, pymtp against llama-server: the same llama.cpp, the same file, the same prompts.

    pip install . typer
    python tools/bench/bench_requests.py demo:8:256 demo:8:256:0.7
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_requests.py build/0.8b-q4_0.gguf:4:64 build/0.8b-q4_0.gguf:8:64

A case is MODEL:REQUESTS:TOKENS:TEMPERATURE, where "demo" is the shipped model and TEMPERATURE may be left out: greedy.
All requests are sent at once to a server with as many slots, and handed to pymtp as one list. What counts is the time
from then to the last token of the last request, prompts included. llama-server runs plain and with its MTP at 1, 2 and
3 drafts; pymtp is measured against the best of these. It is built from the pinned sources, with pymtp's build
options and with no patch but those that it needs to run. With --patched it is built from pymtp's own sources, so that
kernels and design are told apart.

Every measurement is a process of its own, warmed up with as many requests. They come in rounds, one of each kind, in
alternating order. After the first round an arm of llama-server that had less than 0.7 of its best is left out.
With random weights no draft is accepted on either side.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
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

from pymtp import LLM, InvalidRequestError, PymtpError, SamplingParams, build_info
from pymtp.bench.machine import machine
from pymtp.model.model import demo_model
from pymtp.native.cores import default_threads

screen = Console(stderr=True, highlight=False)

DEMO = "demo"
SERVER, PYMTP = "llama-server", "pymtp"
SERVER_DRAFTS = (0, 1, 2, 3)
PYMTP_DRAFTS: tuple[int | Literal["auto"], ...] = (0, "auto")
WORTH = 0.7  # of the best arm of llama-server: to be measured again
WARM_UP = 16  # tokens of each request
PAGE = 256  # tokens that contexts are rounded up to


@dataclass(frozen=True)
class Case:
    """What all sides are given."""

    model: Path
    held_out: bool
    requests: int
    tokens: int
    temperature: float
    prompt_tokens: int
    threads: int

    @classmethod
    def read(cls, text: str, prompt_tokens: int, threads: int) -> Case:
        """ "demo:8:256:0.7". Raises InvalidRequestError for what is no case."""
        model, *numbers = text.split(":")
        file = demo_model() if model == DEMO else Path(model)
        try:
            requests, tokens, temperature = map(float, [*numbers, 0.0][:3])
        except ValueError as error:
            raise InvalidRequestError(f"{text!r} is no MODEL:REQUESTS:TOKENS or MODEL:…:TEMPERATURE") from error
        if not file.is_file():
            raise InvalidRequestError(f"there is no file {file}")
        return cls(file, model == DEMO, int(requests), int(tokens), temperature, prompt_tokens, threads)

    @property
    def n_ctx(self) -> int:
        """Tokens that one request has room for, on either side."""
        return -(-(self.prompt_tokens + self.tokens) // PAGE) * PAGE

    def __str__(self) -> str:
        heat = f"T = {self.temperature:g}" if self.temperature else "greedy"
        return f"{self.model.name}, {self.requests} requests of {self.tokens} tokens, {heat}"


@dataclass(frozen=True)
class Measurement:
    """One arm of a case. speed: tokens a second, of all requests. first_token: seconds from the beginning to the first
    token of a request; the median of all."""

    speed: float
    first_token: float


def measure_server(program: Path, case: Case, drafts: int, prompts: Sequence[Sequence[int]]) -> Measurement:
    """One run of llama-server. Raises ServerError."""
    speculative: dict[str, str | int] = {"spec_type": "draft-mtp", "spec_draft_n_max": drafts} if drafts else {}
    with (
        llama_server.start(
            program,
            case.model,
            parallel=case.requests,
            threads=case.threads,
            ctx_size=case.n_ctx * case.requests,
            **speculative,
        ) as server,
        ThreadPoolExecutor(case.requests) as clients,
    ):

        def ask(n: int) -> list[llama_server.Answer]:
            asked = [
                clients.submit(server.complete, prompt, n, temperature=case.temperature, seed=number)
                for number, prompt in enumerate(prompts)
            ]
            return [each.result() for each in asked]

        ask(WARM_UP)
        started = time.perf_counter()
        answers = ask(case.tokens)
        seconds = time.perf_counter() - started
    n = sum(len(answer.token_ids) for answer in answers)
    return Measurement(n / seconds, statistics.median(answer.waited for answer in answers))


def measure_pymtp(
    case: Case, drafts: int | Literal["auto"], prompts: Sequence[Sequence[int]], bias: dict[int, float]
) -> Measurement:
    """One run of pymtp. To be run in a process of its own."""
    with LLM(
        case.model,
        n_ctx=case.n_ctx,
        n_seq_max=case.requests,
        n_threads=case.threads,
        draft_tokens=drafts,
        cache_prompt=False,
    ) as llm:

        def params(n: int) -> list[SamplingParams]:
            # as llama-server samples here: from the 40 likeliest
            alike = {"max_tokens": n, "temperature": case.temperature, "top_k": 40, "top_p": 1.0, "min_p": 0.0}
            return [SamplingParams(**alike, seed=number, logit_bias=bias) for number in range(len(prompts))]  # type: ignore[arg-type]

        llm.generate(prompts, params(WARM_UP))
        started = time.perf_counter()
        done = llm.generate(prompts, params(case.tokens))
        seconds = time.perf_counter() - started
    n = sum(len(completion.token_ids) for completion in done)
    return Measurement(n / seconds, statistics.median(c.stats.time_to_first_token for c in done))


def measure(case: Case, n: int, program: Path) -> list[dict[str, Measurement]]:
    """n rounds of the arms. Says on stderr how it goes."""
    prompts, bias = in_a_process(
        partial(prepare, case.model, case.requests, case.prompt_tokens, held_out=case.held_out)
    )
    arms: dict[str, Callable[[], Measurement]] = {
        name(SERVER, drafts): partial(measure_server, program, case, drafts, prompts) for drafts in SERVER_DRAFTS
    }
    arms |= {
        name(PYMTP, drafts): partial(in_a_process, measure_pymtp, case, drafts, prompts, bias)
        for drafts in PYMTP_DRAFTS
    }
    found: list[dict[str, Measurement]] = []
    for measured in rounds(arms, n):
        found.append(measured)
        said = ", ".join(f"{arm} {m.speed:.1f}/s" for arm, m in measured.items())
        screen.print(f"{case}, round {len(found)} of {n}: {said}")
        best = max(m.speed for arm, m in measured.items() if arm.startswith(SERVER))
        for arm, m in measured.items():
            if len(found) == 1 and arm.startswith(SERVER) and m.speed < WORTH * best:
                del arms[arm]
    return found


def name(side: str, drafts: int | str) -> str:
    """Of an arm."""
    return f"{side} {drafts or 'plain'}"


def summary(found: Sequence[dict[str, Measurement]]) -> dict[str, Any]:
    """Medians by arm, and of the ratio to llama-server's best arm, which is the one with the best median of those that
    were measured in all rounds."""
    by_arm = {arm: [measured[arm] for measured in found if arm in measured] for arm in found[0]}
    speeds = {arm: statistics.median(m.speed for m in several) for arm, several in by_arm.items()}
    servers = [arm for arm, several in by_arm.items() if arm.startswith(SERVER) and len(several) == len(found)]
    best = max(servers, key=speeds.__getitem__)
    return {
        "median_tokens_per_second": speeds,
        "median_first_token_seconds": {
            arm: statistics.median(m.first_token for m in several) for arm, several in by_arm.items()
        },
        "best_of_llama_server": best,
        "median_ratio_to_it": {
            arm: statistics.median(measured[arm].speed / measured[best].speed for measured in found)
            for arm in speeds
            if arm.startswith(PYMTP)
        },
        "ratios": {
            arm: [measured[arm].speed / measured[best].speed for measured in found]
            for arm in speeds
            if arm.startswith(PYMTP)
        },
    }


def table(case: Case, found: dict[str, Any]) -> Table:
    """A line for each arm; ratios are to llama-server's best."""
    lines = Table("", "tokens/s", "ratio", "range", "first token, s", title=str(case))
    for column in lines.columns:
        column.justify, column.no_wrap = "left" if column is lines.columns[0] else "right", True
    for arm, median in found["median_tokens_per_second"].items():
        ratios = found["ratios"].get(arm)
        against = (
            ("", "")
            if ratios is None
            else (f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} … {max(ratios):.3f}")
        )
        lines.add_row(arm, f"{median:.1f}", *against, f"{found['median_first_token_seconds'][arm]:.3f}")
    return lines


def main(
    cases: Annotated[list[str], typer.Argument(help="MODEL:REQUESTS:TOKENS[:TEMPERATURE]", show_default=False)],
    pairs: Annotated[int, typer.Option("--pairs", "-r", min=1, help="Measurements of each kind.")] = 5,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt, at most.")] = 48,
    threads: Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")] = None,
    patched: Annotated[bool, typer.Option("--patched", help="A llama-server with all of pymtp's patches.")] = False,
    output: Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")] = None,
) -> None:
    """Compare pymtp with llama-server where several requests run at once."""
    results = []
    try:
        chosen = [Case.read(text, prompt_tokens, threads or default_threads()) for text in cases]
        program = llama_server.build(patched=patched)
        for case in chosen:
            found = measure(case, pairs, program)
            told = summary(found)
            Console(highlight=False).print(table(case, told))
            measured = [{arm: asdict(m) for arm, m in each.items()} for each in found]
            results.append(asdict(case) | {"model": case.model.name} | told | {"rounds": measured})
            if output is not None:  # after each case: what is done is not lost
                output.write_text(as_json(results, patched=patched) + "\n")
    except (BuildError, ServerError, PymtpError) as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)


def as_json(results: list[dict[str, Any]], *, patched: bool) -> str:
    """All cases, and what they were measured with and on."""
    record = {
        "bench": "requests at once against llama-server",
        "patched_server": patched,
        "cases": results,
        "machine": machine(),
        "build": build_info(),
    }
    return json.dumps(record, indent=1)


if __name__ == "__main__":
    typer.run(main)
