"""Options that several benches share, and the output of their reports."""

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

TABLE_WIDTH = 140  # least width of tables, in columns, if the output is not a terminal


class ReportFormat(str, Enum):
    """The format in which a report is printed."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"


Format = Annotated[ReportFormat, typer.Option("--output", "-o", help="How to print the report.")]
Plot = Annotated[Path | None, typer.Option(help="Also draw the report to this .svg or .png file.")]
FromFile = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Show a report that -o json printed. Measures nothing.")
]

Synthetic = Annotated[
    str | None,
    typer.Option(
        metavar="P0,P1,…",
        help="Accept the first, second, … draft of a round at these rates, not as the target decides.",
    ),
]


def check_failed(n_failed: int) -> None:
    """Raise NativeError if measurements failed. The message refers to the report, which must have been shown."""
    if n_failed:
        measurements = "1 measurement" if n_failed == 1 else f"{n_failed} measurements"
        raise NativeError(f"{measurements} failed: the reasons stand under the tables")


def run_with_progress(bench: PairedBench[Any, Any], report_module: ModuleType) -> list[str]:
    """Run a bench, and show its progress.

    If Ctrl-C interrupts the bench, return a list with a line for `left_out` of the report, else an empty list.

    report_module: the module of the bench's report, such as decode_report, which describes measurements.
    """
    from pymtp.cli.progress import BenchProgress

    with BenchProgress(sum(len(group.arms) for group in bench.groups), screen) as progress:
        bench.on_start = lambda group, arm, seconds_left: progress.start(
            report_module.describe_start(group, arm), seconds_left
        )
        bench.on_done = lambda measurement: progress.finish(report_module.describe_result(measurement))
        try:
            bench.run()
        except KeyboardInterrupt:
            return ["the measurements after the interruption"]
    return []


@dataclass(frozen=True)
class ReportOptions:
    """Options for the output of a report.

    Its methods take two arguments that depend on the bench: report_module, such as decode_report, and `draw`, the
    function that plots the report.
    """

    output: Format = ReportFormat.table
    plot: Plot = None
    from_file: FromFile = None

    def show_saved(self, report_module: ModuleType, draw: Callable[..., None]) -> bool:
        """Show the saved report if the option --from was given. Return whether it was given.

        Also checks the option --plot.

        Raises InvalidRequestError if the file is not a report of this bench, or if no plot can be written.
        """
        from pymtp.bench.plot import check_plot

        if self.plot is not None:
            check_plot(self.plot)
        if self.from_file is not None:
            self._show(report_module.load(self.from_file), report_module, draw)
        return self.from_file is not None

    def finish(
        self, report: Record[T], report_module: ModuleType, draw: Callable[..., None], *, failed: int, interrupted: bool
    ) -> None:
        """Show the report, then end the command with exit code 130 if the bench was interrupted.

        Raises NativeError if measurements failed and the bench was not interrupted.

        failed: number of failed measurements.
        """
        self._show(report, report_module, draw)
        if interrupted:
            raise typer.Exit(INTERRUPTED)
        check_failed(failed)

    def _show(self, report: Record[T], report_module: ModuleType, draw: Callable[..., None]) -> None:
        if self.output is ReportFormat.table:
            out = tables()
            if not out.is_terminal:
                out.width = max(out.width, TABLE_WIDTH)
            out.print(report_module.as_tables(report))
        else:
            formatters = {
                ReportFormat.json: report_module.as_json,
                ReportFormat.csv: report_module.as_csv,
                ReportFormat.md: report_module.as_markdown,
            }
            print(formatters[self.output](report))
        if self.plot is not None and report.measurements:
            draw(report, self.plot)
            screen.print(f"plot: {self.plot}", style="dim", soft_wrap=True, markup=False)
