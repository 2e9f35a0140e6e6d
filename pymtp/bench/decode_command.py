"""`pymtp bench decode`: its command line. What it measures with is imported when it runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from pymtp.bench.output import INTERRUPTED, Format, FromFile, Output, Synthetic, given, screen, show
from pymtp.errors import NativeError
from pymtp.options import CacheType, Layers, ModelFile, Threads

if TYPE_CHECKING:
    from pymtp.bench.decode import Settings
    from pymtp.bench.decode_report import Report

MAX_TOKENS = 16 * 1024


def decode(
    model: ModelFile = None,
    depths: Annotated[
        str, typer.Option(help="Drafts a round; 3:host-copy: hidden states through the host.")
    ] = "none,1,2,3,4,5,6,7,8,auto",
    kinds: Annotated[str, typer.Option(help="Kinds of prompts.")] = "code,prose,lists,chat,repetition,random",
    temperatures: Annotated[str, typer.Option(help="0 is greedy.")] = "0,0.7",
    tokens: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="To generate after each prompt.")] = 128,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Measurements of each.")] = 3,
    synthetic_acceptance: Synthetic = None,
    gpu_layers: Layers = -1,
    threads: Threads = None,
    cache_type: CacheType = "f16",
    output: Format = Output.table,
    plot: Annotated[Path | None, typer.Option(help="Draw speed over depth: a .svg or .png file.")] = None,
    from_file: FromFile = None,
) -> None:
    """Compare decoding without drafts, with any number of them, and with as many as seem worth it.

    All arms are open at once, over one copy of the weights. Ctrl-C ends it and shows what is done.
    """
    from pymtp.bench import decode_report
    from pymtp.bench.decode import NONE, Settings
    from pymtp.bench.decode_plot import plot as draw
    from pymtp.bench.plot import check_plot
    from pymtp.bench.prompts import KINDS
    from pymtp.bench.requests import check_head, read_arms, read_names, read_reals, read_synthetic
    from pymtp.context import physical_cores
    from pymtp.model import Model

    if plot is not None:
        check_plot(plot)
    if from_file is not None:
        show(decode_report.load(from_file), decode_report, draw, output, plot)
        return
    arms = read_arms(depths)
    chosen = read_names("--kinds", kinds, KINDS)
    heats = tuple(sorted(set(read_reals("--temperatures", temperatures))))
    rates = None if synthetic_acceptance is None else read_synthetic(synthetic_acceptance)
    with Model(model, vocab_only=True) as looked_at:
        if arms != (NONE,):
            check_head(looked_at, f", it can only be measured with --depths {NONE}")
    settings = Settings(
        model=looked_at.path.name,
        arms=arms,
        kinds=chosen,
        temperatures=heats,
        tokens=tokens,
        rounds=rounds,
        synthetic=rates,
        threads=given(threads, physical_cores()),
        gpu_layers=gpu_layers,
        cache_type=cache_type,
    )
    report, failed, interrupted = _measure(settings, looked_at.path)
    show(report, decode_report, draw, output, plot)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if failed:
        raise NativeError(f"{failed} measurements failed, they are named under the tables")


def _measure(settings: Settings, model: Path) -> tuple[Report, int, bool]:
    """The report, how many measurements failed, and whether it was interrupted."""
    from pymtp.bench.decode import Arms, DecodeBench, groups
    from pymtp.bench.decode_report import Report, done, going_on
    from pymtp.bench.progress import Watch
    from pymtp.bench.report import measured_on
    from pymtp.model import Model

    with screen.status(escape(f"loading {settings.model} …")):
        loaded = Model(model, n_gpu_layers=settings.gpu_layers)
    total = len(groups(settings)) * len(settings.arms)
    with loaded, closing(Arms(loaded, settings)) as arms, Watch(total, screen) as watch:
        run = DecodeBench(
            settings,
            arms.run,
            on_start=lambda group, arm, left: watch.start(going_on(group, arm), left),
            on_done=lambda measurement: watch.done(done(measurement)),
        )
        try:
            run.run()
            interrupted = []
        except KeyboardInterrupt:
            interrupted = ["what was to come when it was interrupted"]
        report = Report.of(
            run.measurements, asdict(settings), left_out=run.left_out + interrupted, **measured_on(loaded)
        )
    return report, sum(run.failed.values()), bool(interrupted)
