"""Options that the benches share, and how they show their reports."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pymtp.cli.screen import screen, tables
from pymtp.errors import NativeError

if TYPE_CHECKING:
    from types import ModuleType

    from pymtp.bench.paired import PairedBench
    from pymtp.bench.report import Record

T = TypeVar("T")

TABLE_WIDTH = 140  # at least, where the terminal does not say how wide it is


class Output(str, Enum):
    """How the result is printed."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"


Format = Annotated[Output, typer.Option("--output", "-o", help="How to print the report.")]
FromFile = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Show a report that -o json printed. Measures nothing.")
]

Synthetic = Annotated[
    str | None,
    typer.Option(metavar="P0,P1,…", help="Accept the first, second, … draft of a round at these rates."),
]


def given(value: T | None, default: T) -> T:
    """An option's value, or what stands for it."""
    return default if value is None else value


def check_failed(n: int) -> None:
    """Raises NativeError where measurements failed, after their report was shown."""
    if n:
        which = "1 measurement failed; it is" if n == 1 else f"{n} measurements failed; they are"
        raise NativeError(f"{which} named under the tables")


def watch(bench: PairedBench[Any, Any], reports: ModuleType) -> list[str]:
    """Runs a bench behind a bar of progress, in the words of its module `reports`. A line where it was interrupted."""
    from pymtp.cli.progress import Watch

    with Watch(sum(len(group.arms) for group in bench.groups), screen) as bar:
        bench.on_start = lambda group, arm, left: bar.start(reports.going_on(group, arm), left)
        bench.on_done = lambda measurement: bar.done(reports.done(measurement))
        try:
            bench.run()
        except KeyboardInterrupt:
            return ["the measurements after the interruption"]
    return []


def show(report: Record[T], reports: ModuleType, draw: Callable[..., None], output: Output, plot: Path | None) -> None:
    """Prints a report with the functions of its module `reports`, and draws it."""
    if output is Output.table:
        out = tables()
        if not out.is_terminal:
            out.width = max(out.width, TABLE_WIDTH)
        out.print(reports.as_tables(report))
    else:
        printed = {Output.json: reports.as_json, Output.csv: reports.as_csv, Output.md: reports.as_markdown}
        print(printed[output](report))
    if plot is not None and report.measurements:
        draw(report, plot)
        screen.print(f"plot: {plot}", style="dim", soft_wrap=True, markup=False)
