"""The harness of comparisons: cases and prompts, a process for each measurement, rounds of all arms, and the report.

An arm is one of the compared sides. Each round has one measurement of each arm, in alternating order, and ratios are
computed within a round, so that a change of the machine's speed affects all arms alike.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import typer
from llama_build import BuildError
from llama_server import ServerError
from rich.console import Console
from serving import NotServedError

from pymtp import LLM, Completion, InvalidRequestError, PymtpError, SamplingParams, build_info
from pymtp.bench.machine import machine
from pymtp.bench.table import SPREAD, Column, Spread, Table, as_tables
from pymtp.model.model import Model, demo_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts

T = TypeVar("T")

DEMO = "demo"
WARM_UP = 16  # tokens of each request
PAGE = 256  # tokens that contexts are rounded up to

# options that several tools have
ModelFile = Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")]
Pairs = Annotated[int, typer.Option("--pairs", "-r", min=1, help="Measurements of each kind.")]
Threads = Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")]
Patched = Annotated[bool, typer.Option("--patched", help="A llama-server with all of pymtp's patches.")]
Output = Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")]

screen = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Case:
    """A case: the settings of both sides. held_out: the prompts are text that the model was not trained on."""

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

    def run_llm(
        self, model: Path, prompts: Sequence[Any], params: Mapping[str, Any], **keywords: Any
    ) -> tuple[list[Completion], float]:
        """Run all requests with a new LLM, after a warm-up. Return the completions, and the seconds to the last token.

        params: further keywords of SamplingParams. keywords: of LLM.
        """
        keywords |= {"n_ctx": self.n_ctx, "n_seq_max": self.requests, "n_threads": self.threads, "cache_prompt": False}
        with LLM(model, **keywords) as llm:

            def run(n: int) -> list[Completion]:
                shared = {"max_tokens": n, "temperature": self.temperature, **params}
                return llm.generate(prompts, [SamplingParams(seed=seed, **shared) for seed in range(len(prompts))])

            run(WARM_UP)
            started = time.perf_counter()
            completions = run(self.tokens)
            return completions, time.perf_counter() - started


def count_drafts(
    prompts: Sequence[str], max_tokens: int, temperature: float, seed: int = 0, **keywords: Any
) -> dict[str, Any]:
    """Continue prompts with the shipped model. Return sums of the rounds and drafts, which no machine's speed changes.

    keywords: of LLM. by_position, outside: for the first, second, … draft of a round, how often it was accepted, and
    how often it was the first to be rejected while the draft vocabulary lacked the token. texts: a hash of all texts.
    """
    params = SamplingParams(max_tokens, temperature=temperature, seed=seed, ignore_eos=True)
    with LLM(n_ctx=1024, n_threads=1, **keywords) as llm:
        completions = llm.generate(prompts, params)
        depth = llm.context.draft_tokens

    def sums(name: str) -> list[int]:
        counts = [getattr(completion.stats, name) for completion in completions]
        return [sum(own[i] for own in counts if i < len(own)) for i in range(depth)]

    names = ("rounds", "drafted", "accepted")
    return {name: sum(getattr(c.stats, name) for c in completions) for name in names} | {
        "by_position": sums("accepted_per_position"),
        "outside": sums("outside_per_position"),
        "texts": hashlib.sha256(json.dumps([c.token_ids for c in completions]).encode()).hexdigest(),
    }


def in_a_process(call: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process, so that nothing remains for the next measurement. Return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(call, arguments)


def peak_resident_bytes(pid: int | None = None) -> int:
    """Return the peak of the resident memory of a process, or of this one, with mapped files. Linux only."""
    status = Path(f"/proc/{pid or os.getpid()}/status").read_text()
    match = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def prepare(
    file: Path, n: int, max_tokens: int | None = None, *, held_out: bool
) -> tuple[list[list[int]], dict[int, float]]:
    """Make n prompts as token ids, and a logit bias that forbids end tokens, as llama-server's ignore_eos does.

    held_out: text that the shipped model was not trained on, cut to max_tokens; else max_tokens random tokens, 100 by
    default. Call it in a new process, as it loads the model.
    """
    with Model(file, mtp=False) as model:
        if held_out:
            prompts = [model.tokenize(text)[:max_tokens] for text in held_out_prompts(n)]
        else:
            numbers = random.Random(0)
            prompts = [numbers.choices(range(model.n_vocab), k=max_tokens or 100) for _ in range(n)]
        bias = {token: float("-inf") for token in range(model.n_vocab) if model.ends_generation(token)}
    return prompts, bias


@dataclass
class Comparison(Generic[T]):
    """Rounds with one measurement of each arm, and figures of the arms.

    figure: the compared figure of a measurement, such as tokens/s.
    rounds: for each round, the measurements by arm. An arm may be missing in later rounds.
    """

    figure: Callable[[T], float]
    rounds: list[dict[str, T]] = field(default_factory=list)

    def run(self, title: str, arms: Mapping[str, Callable[[], T]], n: int) -> Iterator[dict[str, T]]:
        """Yield n rounds after they are measured. Print the progress on stderr.

        The caller may delete arms between rounds.
        """
        for number in range(n):
            order = list(arms) if number % 2 == 0 else list(arms)[::-1]
            measured = {arm: arms[arm]() for arm in order}
            self.rounds.append({arm: measured[arm] for arm in arms})
            shown = ", ".join(f"{arm} {self.figure(m):,.4g}" for arm, m in self.rounds[-1].items())
            screen.print(f"{title}, round {number + 1} of {n}: {shown}")
            yield self.rounds[-1]

    def values(self, arm: str, figure: Callable[[T], float] | None = None) -> list[float]:
        """Return a figure of an arm in all rounds that have it."""
        return [(figure or self.figure)(measured[arm]) for measured in self.rounds if arm in measured]

    def medians(self, figure: Callable[[T], float] | None = None) -> dict[str, float]:
        """Return the median of a figure by arm."""
        return {arm: statistics.median(self.values(arm, figure)) for arm in self.rounds[0]}

    def ratios(self, arm: str, base: str, figure: Callable[[T], float] | None = None) -> list[float]:
        """Return the ratios of an arm's figure to that of the arm `base`, in each round that has both."""
        get = figure or self.figure
        return [get(measured[arm]) / get(measured[base]) for measured in self.rounds if {arm, base} <= {*measured}]

    def table(self, title: str, heading: str, base: str, *more: Column) -> Table:
        """Make a table with a row for each arm: the figure, its ratio to the arm `base`, and more columns."""
        columns = [
            Column("", lambda arm: arm),
            Column(heading, lambda arm: Spread.of(self.values(arm)), SPREAD),
            Column(f"of {base}", lambda arm: None if arm == base else Spread.of(self.ratios(arm, base)), SPREAD),
        ]
        return Table(title, [*columns, *more], list(self.rounds[0]))

    def as_dicts(self, *leave_out: str) -> list[dict[str, Any]]:
        """Return all measurements, for JSON. leave_out: fields that are not written."""
        return [
            {arm: {name: value for name, value in vars(m).items() if name not in leave_out} for arm, m in r.items()}
            for r in self.rounds
        ]


def show(*tables: Table, notes: Sequence[str] = ()) -> None:
    """Print tables and notes."""
    Console(highlight=False, width=max(Console().width, 140)).print(as_tables(tables, notes))


def write_json(path: Path | None, bench: str, **parts: Any) -> None:
    """Write a report with the machine and the build, if there is a path for it."""
    if path is not None:
        record = {"bench": bench, **parts, "machine": machine(), "build": build_info()}
        path.write_text(json.dumps(record, indent=1, default=str) + "\n")


@contextmanager
def errors_shown() -> Iterator[None]:
    """Show an error of a build, a server or pymtp as one line, and end the program with exit code 1."""
    errors = (BuildError, ServerError, NotServedError, PymtpError, ValueError, subprocess.CalledProcessError)
    try:
        yield
    except errors as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        raise typer.Exit(1) from error
