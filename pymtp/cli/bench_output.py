"""Options that several benches share, the run of a bench, and the output of its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pymtp.cli.exit_codes import INTERRUPTED
from pymtp.cli.given import given_option
from pymtp.cli.model_file import model_file
from pymtp.cli.screen import loading_status, screen
from pymtp.cli.tables import print_tables
from pymtp.errors import InvalidRequestError, NativeError

if TYPE_CHECKING:
    from pymtp.bench.paired import BenchSettings, PairedBench
    from pymtp.bench.report import Report
    from pymtp.model.model import Model


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


ForcedText = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|library",
        help="Take given texts as what the model chose: JSON lines of kind, prompt and text, or texts made from "
        "Python's library. --synthetic-acceptance sets the rates of the head's drafts.",
    ),
]


def check_failed(n_failed: int) -> None:
    """Raise NativeError if measurements failed. The message refers to the report, which must have been shown."""
    if n_failed:
        measurements = "1 measurement" if n_failed == 1 else f"{n_failed} measurements"
        raise NativeError(f"{measurements} failed: the reasons stand under the tables")


def bench_model(name: str | None, settings: dict[str, Any], *, with_head: bool = True) -> Model:
    """Find the model of a bench, and return its header without weights. It is closed already.

    settings: those of BenchOptions; a separate head is added to its "placing".
    with_head: False if no drafts will be made, so that no head is downloaded.

    Raises the errors of `model_file` and of Model.
    """
    from pymtp.model.model import Model

    file, settings["placing"] = model_file(name, settings["placing"], with_head=with_head)
    with Model(file, vocab_only=True, head=settings["placing"].get("head")) as header:
        return header


def run_with_progress(bench: PairedBench[Any], report: type[Report]) -> list[str]:
    """Run a bench, and show its progress.

    If Ctrl-C interrupts the bench, return a list with a line for `left_out` of the report, else an empty list.

    report: the class of the bench's report, which describes measurements.
    """
    from pymtp.cli.progress import BenchProgress

    with BenchProgress(sum(len(group.arms) for group in bench.groups), screen) as progress:
        bench.on_start = lambda group, arm, left: progress.start(report.describe_start(group, arm), left)
        bench.on_step = progress.describe
        bench.on_done = lambda measurement: progress.finish(report.describe_result(measurement))
        try:
            bench.run()
        except KeyboardInterrupt:
            return ["the measurements after the interruption"]
    return []


@dataclass(frozen=True)
class ReportOptions:
    """Options for the output of a report."""

    output: Format = ReportFormat.table
    plot: Plot = None
    from_file: FromFile = None

    def show_saved(self, context: typer.Context, report: type[Report]) -> bool:
        """Show the saved report if the option --from was given. Return whether it was given.

        Also checks the option --plot.

        Raises InvalidRequestError if the file is not a report of this bench, if no plot can be written, and for options
        of the measurements beside --from.
        """
        from pymtp.bench.plot import check_plot

        own = {field.name for field in fields(self)}
        if self.from_file is not None and (option := given_option(context, own)) is not None:
            raise InvalidRequestError(f"{option} has no effect beside --from, which measures nothing: leave it out")

        if self.plot is not None:
            check_plot(self.plot)
        if self.from_file is not None:
            self._show(report.load(self.from_file))
        return self.from_file is not None

    def measure(
        self,
        settings: BenchSettings,
        file: Path,
        open_bench: Callable[[Model, Any], AbstractContextManager[PairedBench[Any]]],
        report: type[Report],
        left_out: Sequence[str] = (),
    ) -> None:
        """Run a bench and show its report, then end the command with exit code 130 if Ctrl-C interrupted the bench.

        Raises NativeError if measurements failed and the bench was not interrupted.

        file: the model.
        open_bench: makes the bench for the loaded model and the settings.
        left_out: lines for the report about what is not measured.
        """
        from pymtp.bench.report import run_environment
        from pymtp.model.model import Model

        with loading_status(settings.model):
            model = Model(file, n_gpu_layers=settings.gpu_layers, **settings.placing)
        with model, open_bench(model, settings) as bench:
            interrupted = run_with_progress(bench, report)
            lines = [*left_out, *bench.left_out, *interrupted]
            where = run_environment(model)
            self._show(report.of(bench.measurements, asdict(settings), left_out=lines, **bench.fields, **where))
        if interrupted:
            raise typer.Exit(INTERRUPTED)
        check_failed(sum(bench.failed.values()))

    def _show(self, report: Report) -> None:
        if self.output is ReportFormat.table:
            print_tables(*report.as_tables())
        else:
            forms = {"json": report.as_json, "csv": report.as_csv, "md": report.as_markdown}
            print(forms[self.output.value]())
        if self.plot is not None and report.measurements:
            report.plot(self.plot)
            screen.print(f"plot: {self.plot}", style="dim", soft_wrap=True, markup=False)
