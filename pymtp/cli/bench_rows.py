"""`pymtp bench rows`. What it measures with is imported when it runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pymtp.cli.bench_output import Showing
from pymtp.cli.model_file import model_file
from pymtp.cli.options import ModelName, spread
from pymtp.cli.running import BenchRunning
from pymtp.cli.screen import loading, screen

if TYPE_CHECKING:
    from pymtp.bench.rows import Settings
    from pymtp.bench.rows_report import Report

MAX_ROWS = 65  # of a verification: 64 drafts and the token before them


@spread
def rows(
    *,
    model: ModelName = None,
    rows: Annotated[str, typer.Option(help="Rows of a verification.")] = "1,2,3,4,6,8,12,16,32,64",
    drafts: Annotated[str, typer.Option(help="Drafts of a chain.")] = "1,3,7",
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Measurements of each.")] = 5,
    memory: Annotated[
        int,
        typer.Option(
            min=0, max=2**20, metavar="MIB", help="Memory to read for its speed: far more than the caches. 0: none."
        ),
    ] = 1024,
    alike: Annotated[
        bool, typer.Option("--alike", help="All rows of one token: their experts are mostly the same.")
    ] = False,
    running: BenchRunning,
    showing: Showing,
) -> None:
    """Time verifications and chains of drafts against one row.

    Each is timed as a whole and by operation. Ctrl-C ends the bench and shows the measurements made so far.
    """
    from pymtp.bench import rows_report
    from pymtp.bench.rows import Settings
    from pymtp.bench.rows_plot import plot as draw
    from pymtp.cli.bench_requests import check_head, read_numbers
    from pymtp.model.model import Model

    if showing.again(rows_report, draw):
        return
    numbers = read_numbers("--rows", rows, MAX_ROWS)
    steps = read_numbers("--drafts", drafts, MAX_ROWS - 1)
    running_with = running.settings()
    file, running_with["placing"] = model_file(model, running_with["placing"])
    with Model(file, vocab_only=True, head=running_with["placing"].get("head")) as looked_at:
        check_head(looked_at)
    settings = Settings(
        model=looked_at.file_names,
        rows=tuple(sorted({1, *numbers})),
        steps=tuple(sorted(set(steps))),
        rounds=rounds,
        memory=memory * 2**20,
        alike=alike,
        **running_with,
    )
    report, interrupted = _measure(settings, looked_at.path)
    showing.end(report, rows_report, draw, failed=len(report.left_out), interrupted=interrupted)


def _measure(settings: Settings, model: Path) -> tuple[Report, bool]:
    """The report, and whether it was interrupted."""
    from pymtp.bench.corpus import TokenSource, stdlib_texts
    from pymtp.bench.report import measured_on
    from pymtp.bench.rows import PROMPT, RowsBench, open_context, planned
    from pymtp.bench.rows_report import Report, done, going_on
    from pymtp.cli.progress import Watch
    from pymtp.model.model import Model

    with loading(settings.model):
        loaded = Model(model, n_gpu_layers=settings.gpu_layers, **settings.placing)
    total = settings.rounds * len(planned(settings, 0))
    with loaded, closing(open_context(loaded, settings)) as context, Watch(total, screen) as watch:
        source = TokenSource(lambda text: loaded.tokenize(text, add_special=False), stdlib_texts)
        run = RowsBench(
            settings,
            context,
            source.take(4 * PROMPT),
            on_start=lambda what, n, left: watch.start(going_on(what, n), left),
            on_done=lambda measurement: watch.done(done(measurement)),
        )
        try:
            run.run()
            interrupted = []
        except KeyboardInterrupt:
            interrupted = ["the measurements after the interruption"]
        report = Report(
            settings=asdict(settings),
            left_out=run.failed + interrupted,
            measurements=run.measurements,
            reads=run.reads,
            **measured_on(loaded),
        )
    return report, bool(interrupted)
