"""The command `pymtp bench rows`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pymtp.cli.bench_output import ReportOptions
from pymtp.cli.model_file import model_file
from pymtp.cli.options import ModelName, expand_options
from pymtp.cli.running import BenchOptions
from pymtp.cli.screen import loading_status, screen

if TYPE_CHECKING:
    from pymtp.bench.rows import RowsSettings
    from pymtp.bench.rows_report import RowsReport

MAX_ROWS = 65  # a verification has at most 64 drafts and the token before them


@expand_options
def rows(
    *,
    model: ModelName = None,
    rows: Annotated[str, typer.Option(help="Numbers of rows of the verifications.")] = "1,2,3,4,6,8,12,16,32,64",
    drafts: Annotated[str, typer.Option(help="Numbers of drafts of the chains.")] = "1,3,7",
    rounds: Annotated[
        int, typer.Option("--rounds", "-r", min=1, help="Measurements of each verification and chain.")
    ] = 5,
    memory: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**20,
            metavar="MIB",
            help="Memory to read to measure its speed; should be far larger than the CPU's caches. 0 reads none.",
        ),
    ] = 1024,
    alike: Annotated[
        bool, typer.Option("--alike", help="Use the same token in all rows, so that they use mostly the same experts.")
    ] = False,
    run_options: BenchOptions,
    report_options: ReportOptions,
) -> None:
    """Time verifications and chains of drafts relative to one row.

    Each is timed as a whole and by operation. Ctrl-C ends the bench and shows the measurements made so far.
    """
    from pymtp.bench import rows_report
    from pymtp.bench.rows import RowsSettings
    from pymtp.bench.rows_plot import plot as draw
    from pymtp.cli.bench_requests import check_head, read_numbers
    from pymtp.model.model import Model

    if report_options.show_saved(rows_report, draw):
        return
    numbers = read_numbers("--rows", rows, MAX_ROWS)
    chain_lengths = read_numbers("--drafts", drafts, MAX_ROWS - 1)
    run_settings = run_options.settings()
    file, run_settings["placing"] = model_file(model, run_settings["placing"])
    with Model(file, vocab_only=True, head=run_settings["placing"].get("head")) as header:
        check_head(header)
    settings = RowsSettings(
        model=header.file_names,
        rows=tuple(sorted({1, *numbers})),
        steps=tuple(sorted(set(chain_lengths))),
        rounds=rounds,
        memory=memory * 2**20,
        alike=alike,
        **run_settings,
    )
    report, interrupted = _measure(settings, header.path)
    report_options.finish(report, rows_report, draw, failed=len(report.left_out), interrupted=interrupted)


def _measure(settings: RowsSettings, model: Path) -> tuple[RowsReport, bool]:
    """Run the bench. Return its report, and whether Ctrl-C interrupted it."""
    from pymtp.bench.corpus import TokenSource, stdlib_texts
    from pymtp.bench.report import run_environment
    from pymtp.bench.rows import PROMPT, RowsBench, open_context, planned
    from pymtp.bench.rows_report import RowsReport, describe_result, describe_start
    from pymtp.cli.progress import BenchProgress
    from pymtp.model.model import Model

    with loading_status(settings.model):
        loaded = Model(model, n_gpu_layers=settings.gpu_layers, **settings.placing)
    total = settings.rounds * len(planned(settings, 0))
    with loaded, closing(open_context(loaded, settings)) as context, BenchProgress(total, screen) as progress:
        source = TokenSource(lambda text: loaded.tokenize(text, add_special=False), stdlib_texts)
        bench = RowsBench(
            settings,
            context,
            source.take(4 * PROMPT),
            on_start=lambda kind, n, seconds_left: progress.start(describe_start(kind, n), seconds_left),
            on_done=lambda measurement: progress.finish(describe_result(measurement)),
        )
        try:
            bench.run()
            interrupted = []
        except KeyboardInterrupt:
            interrupted = ["the measurements after the interruption"]
        report = RowsReport(
            settings=asdict(settings),
            left_out=bench.failed + interrupted,
            measurements=bench.measurements,
            reads=bench.reads,
            **run_environment(loaded),
        )
    return report, bool(interrupted)
