"""The harness of comparisons: a process for each measurement, rounds of all arms, and the report.

An arm is one of the compared sides. Each round has one measurement of each arm, in alternating order, and ratios are
computed within a round, so that a change of the machine's speed affects all arms alike.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import subprocess
import sys
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

from pymtp import PymtpError, build_info
from pymtp.bench.machine import machine
from pymtp.bench.table import SPREAD, Column, Spread, Table, as_tables
from pymtp.cli.tables import print_tables

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

T = TypeVar("T")

PAGE = 256  # tokens that contexts are rounded up to

# options that several tools have
ModelFile = Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")]
Pairs = Annotated[int, typer.Option("--pairs", "-r", min=1, help="Measurements of each kind.")]
Threads = Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")]
Patched = Annotated[bool, typer.Option("--patched", help="A llama-server with all of pymtp's patches.")]
Output = Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")]

screen = Console(stderr=True, highlight=False)


def in_a_process(call: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process, so that nothing remains for the next measurement. Return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(call, arguments)


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
    print_tables(*as_tables(tables, notes))


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
