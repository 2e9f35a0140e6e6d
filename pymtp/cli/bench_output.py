"""Options that the benches share, and how they show their reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pymtp.cli.exit_codes import INTERRUPTED
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
Plot = Annotated[Path | None, typer.Option(help="Draw the report, too: a .svg or .png file.")]
FromFile = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Show a report that -o json printed. Measures nothing.")
]

Synthetic = Annotated[
    str | None,
    typer.Option(metavar="P0,P1,…", help="Accept the first, second, … draft of a round at these rates."),
]


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


@dataclass(frozen=True)
class Showing:
    """How a report is shown. The functions are those of its module `reports`."""

    output: Format = Output.table
    plot: Plot = None
    from_file: FromFile = None

    def again(self, reports: ModuleType, draw: Callable[..., None]) -> bool:
        """Shows the report that is asked for instead of measurements, if one is. Raises InvalidRequestError for a plot
        that cannot be written, before any work."""
        from pymtp.bench.plot import check_plot

        if self.plot is not None:
            check_plot(self.plot)
        if self.from_file is not None:
            self._show(reports.load(self.from_file), reports, draw)
        return self.from_file is not None

    def end(
        self, report: Record[T], reports: ModuleType, draw: Callable[..., None], *, failed: int, interrupted: bool
    ) -> None:
        """Shows what was measured, and ends a bench that was interrupted. Raises NativeError where measurements
        failed."""
        self._show(report, reports, draw)
        if interrupted:
            raise typer.Exit(INTERRUPTED)
        check_failed(failed)

    def _show(self, report: Record[T], reports: ModuleType, draw: Callable[..., None]) -> None:
        if self.output is Output.table:
            out = tables()
            if not out.is_terminal:
                out.width = max(out.width, TABLE_WIDTH)
            out.print(reports.as_tables(report))
        else:
            printed = {Output.json: reports.as_json, Output.csv: reports.as_csv, Output.md: reports.as_markdown}
            print(printed[self.output](report))
        if self.plot is not None and report.measurements:
            draw(report, self.plot)
            screen.print(f"plot: {self.plot}", style="dim", soft_wrap=True, markup=False)
