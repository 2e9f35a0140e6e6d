"""Compare pymtp and llama-server on several requests at once: the same llama.cpp, model file and prompts.

    pip install . typer
    python tools/bench/bench_requests.py demo:8:256 demo:8:256:0.7
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_requests.py build/0.8b-q4_0.gguf:4:64 build/0.8b-q4_0.gguf:8:64

A case is MODEL:REQUESTS:TOKENS:TEMPERATURE, where "demo" is the shipped model and TEMPERATURE may be left out: greedy.
All requests are sent at once to a server with as many slots, and passed to pymtp as one list. The measured time goes
from then to the last token of the last request, with the prefill. llama-server runs without drafts and with its MTP at
1, 2 and 3 drafts; pymtp is compared with the best of these. It is built from the pinned sources with pymtp's build
options, and only with the patches that it needs to run. With --patched it is built from pymtp's own sources, which
separates the effect of kernels from that of the design.

Every measurement is a process of its own, warmed up with as many requests. Each round has one measurement of each arm,
in alternating order. After the first round, arms of llama-server below 0.7 of its best are left out.
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
MIN_SHARE = 0.7  # slower arms, relative to llama-server's best, are not measured again
WARM_UP = 16  # tokens of each request
PAGE = 256  # tokens that contexts are rounded up to


@dataclass(frozen=True)
class Case:
    """A case: the settings of both sides."""

    model: Path
    held_out: bool
    requests: int
    tokens: int
    temperature: float
    prompt_tokens: int
    threads: int

    @classmethod
    def read(cls, text: str, prompt_tokens: int, threads: int) -> Case:
        """Parse a case such as "demo:8:256:0.7". Raises InvalidRequestError for any other text."""
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
        """Return the context of one request, on both sides."""
        return -(-(self.prompt_tokens + self.tokens) // PAGE) * PAGE

    def __str__(self) -> str:
        temperature = f"T = {self.temperature:g}" if self.temperature else "greedy"
        return f"{self.model.name}, {self.requests} requests of {self.tokens} tokens, {temperature}"


@dataclass(frozen=True)
class Measurement:
    """The measurement of one arm. speed: tokens/s of all requests. first_token: median seconds to the first token."""

    speed: float
    first_token: float


def measure_server(program: Path, case: Case, drafts: int, prompts: Sequence[Sequence[int]]) -> Measurement:
    """Measure a run of llama-server. Raises ServerError."""
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

        def run(n: int) -> list[llama_server.Answer]:
            futures = [
                clients.submit(server.complete, prompt, n, temperature=case.temperature, seed=number)
                for number, prompt in enumerate(prompts)
            ]
            return [future.result() for future in futures]

        run(WARM_UP)
        started = time.perf_counter()
        answers = run(case.tokens)
        seconds = time.perf_counter() - started
    n_tokens = sum(len(answer.token_ids) for answer in answers)
    return Measurement(n_tokens / seconds, statistics.median(answer.waited for answer in answers))


def measure_pymtp(
    case: Case, drafts: int | Literal["auto"], prompts: Sequence[Sequence[int]], bias: dict[int, float]
) -> Measurement:
    """Measure a run of pymtp. Call it in a new process."""
    with LLM(
        case.model,
        n_ctx=case.n_ctx,
        n_seq_max=case.requests,
        n_threads=case.threads,
        draft_tokens=drafts,
        cache_prompt=False,
    ) as llm:

        def params(n: int) -> list[SamplingParams]:
            # llama-server samples from the 40 likeliest tokens, too
            shared = {"max_tokens": n, "temperature": case.temperature, "top_k": 40, "top_p": 1.0, "min_p": 0.0}
            return [SamplingParams(**shared, seed=number, logit_bias=bias) for number in range(len(prompts))]  # type: ignore[arg-type]

        llm.generate(prompts, params(WARM_UP))
        started = time.perf_counter()
        completions = llm.generate(prompts, params(case.tokens))
        seconds = time.perf_counter() - started
    n_tokens = sum(len(completion.token_ids) for completion in completions)
    return Measurement(n_tokens / seconds, statistics.median(c.stats.time_to_first_token for c in completions))


def measure(case: Case, n: int, program: Path) -> list[dict[str, Measurement]]:
    """Measure n rounds of all arms. Print the progress on stderr."""
    prompts, bias = in_a_process(
        partial(prepare, case.model, case.requests, case.prompt_tokens, held_out=case.held_out)
    )
    arms: dict[str, Callable[[], Measurement]] = {
        arm_name(SERVER, drafts): partial(measure_server, program, case, drafts, prompts) for drafts in SERVER_DRAFTS
    }
    arms |= {
        arm_name(PYMTP, drafts): partial(in_a_process, measure_pymtp, case, drafts, prompts, bias)
        for drafts in PYMTP_DRAFTS
    }
    results: list[dict[str, Measurement]] = []
    for measured in rounds(arms, n):
        results.append(measured)
        shown = ", ".join(f"{arm} {m.speed:.1f}/s" for arm, m in measured.items())
        screen.print(f"{case}, round {len(results)} of {n}: {shown}")
        best = max(m.speed for arm, m in measured.items() if arm.startswith(SERVER))
        for arm, m in measured.items():
            if len(results) == 1 and arm.startswith(SERVER) and m.speed < MIN_SHARE * best:
                del arms[arm]
    return results


def arm_name(side: str, drafts: int | str) -> str:
    """Return the name of an arm."""
    return f"{side} {drafts or 'plain'}"


def summary(results: Sequence[dict[str, Measurement]]) -> dict[str, Any]:
    """Return medians by arm, and the median ratio to llama-server's best arm.

    The best arm has the best median of those that were measured in all rounds.
    """
    by_arm = {arm: [measured[arm] for measured in results if arm in measured] for arm in results[0]}
    speeds = {arm: statistics.median(m.speed for m in measured) for arm, measured in by_arm.items()}
    servers = [arm for arm, measured in by_arm.items() if arm.startswith(SERVER) and len(measured) == len(results)]
    best = max(servers, key=speeds.__getitem__)
    return {
        "median_tokens_per_second": speeds,
        "median_first_token_seconds": {
            arm: statistics.median(m.first_token for m in measured) for arm, measured in by_arm.items()
        },
        "best_of_llama_server": best,
        "median_ratio_to_it": {
            arm: statistics.median(measured[arm].speed / measured[best].speed for measured in results)
            for arm in speeds
            if arm.startswith(PYMTP)
        },
        "ratios": {
            arm: [measured[arm].speed / measured[best].speed for measured in results]
            for arm in speeds
            if arm.startswith(PYMTP)
        },
    }


def table(case: Case, medians: dict[str, Any]) -> Table:
    """Make a table with a line for each arm. Ratios are to llama-server's best arm."""
    lines = Table("", "tokens/s", "ratio", "range", "first token, s", title=str(case))
    for column in lines.columns:
        column.justify, column.no_wrap = "left" if column is lines.columns[0] else "right", True
    for arm, median in medians["median_tokens_per_second"].items():
        ratios = medians["ratios"].get(arm)
        ratio_columns = (
            ("", "")
            if ratios is None
            else (f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} … {max(ratios):.3f}")
        )
        lines.add_row(arm, f"{median:.1f}", *ratio_columns, f"{medians['median_first_token_seconds'][arm]:.3f}")
    return lines


def main(
    cases: Annotated[list[str], typer.Argument(help="MODEL:REQUESTS:TOKENS[:TEMPERATURE]", show_default=False)],
    pairs: Annotated[int, typer.Option("--pairs", "-r", min=1, help="Measurements of each kind.")] = 5,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt, at most.")] = 48,
    threads: Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")] = None,
    patched: Annotated[bool, typer.Option("--patched", help="A llama-server with all of pymtp's patches.")] = False,
    output: Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")] = None,
) -> None:
    """Compare pymtp with llama-server on several requests at once."""
    results = []
    try:
        parsed_cases = [Case.read(text, prompt_tokens, threads or default_threads()) for text in cases]
        program = llama_server.build(patched=patched)
        for case in parsed_cases:
            measured_rounds = measure(case, pairs, program)
            medians = summary(measured_rounds)
            Console(highlight=False).print(table(case, medians))
            measured = [{arm: asdict(m) for arm, m in arms.items()} for arms in measured_rounds]
            results.append(asdict(case) | {"model": case.model.name} | medians | {"rounds": measured})
            if output is not None:  # after each case, so that no result is lost
                output.write_text(as_json(results, patched=patched) + "\n")
    except (BuildError, ServerError, PymtpError) as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)


def as_json(results: list[dict[str, Any]], *, patched: bool) -> str:
    """Format the results of all cases and the environment as JSON."""
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
