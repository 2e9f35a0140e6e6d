"""`pymtp bench prefix`. What it measures with is imported when it runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pymtp.cli.bench_output import Showing, watch
from pymtp.cli.model_file import model_file
from pymtp.cli.options import ModelName, spread
from pymtp.cli.running import BenchRunning
from pymtp.cli.screen import loading

if TYPE_CHECKING:
    from pymtp.bench.prefix import Settings
    from pymtp.bench.prefix_report import Report

TRACES = "chat,agents,document,four,at-once,prefixes,messages,alone,disk"
MAX_SEQUENCES = 256


@spread
def prefix(
    *,
    model: ModelName = None,
    traces: Annotated[str, typer.Option(help="What is asked.")] = TRACES,
    ctx: Annotated[
        int | None, typer.Option("--ctx", "-c", min=1, help="Tokens of a text.", show_default="the trace's longest")
    ] = None,
    n_seq_max: Annotated[
        int, typer.Option("--n-seq-max", "-s", min=1, max=MAX_SEQUENCES, help="Texts written at once.")
    ] = 4,
    cache: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="MIB",
            help="Host memory for prefixes.",
            show_default="half of those of prefixes and messages; else an LLM's own",
        ),
    ] = None,
    scale: Annotated[float, typer.Option(min=0.001, max=100, help="Of all lengths in the traces.")] = 1.0,
    requests: Annotated[
        int | None, typer.Option(min=1, help="The first requests of each trace.", show_default="all")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Measurements of each trace.")] = 3,
    running: BenchRunning,
    showing: Showing,
) -> None:
    """Compare prompts that begin alike, with prefixes kept and without.

    It shows the tokens read, the seconds to the first token, and memory. Ctrl-C ends the bench and shows the
    measurements made so far.
    """
    from pymtp.bench import prefix_report
    from pymtp.bench.prefix import Settings
    from pymtp.bench.prefix_plot import plot as draw
    from pymtp.bench.traces import NAMES
    from pymtp.cli.bench_requests import read_names
    from pymtp.model.model import Model

    if showing.again(prefix_report, draw):
        return
    chosen = read_names("--traces", traces, NAMES)
    running_with = running.settings()
    file, running_with["placing"] = model_file(model, running_with["placing"])
    with Model(file, vocab_only=True, head=running_with["placing"].get("head")) as looked_at:
        settings = Settings(
            model=looked_at.file_names,
            traces=chosen,
            rounds=rounds,
            n_ctx=ctx,
            n_seq_max=n_seq_max,
            cache_bytes=None if cache is None else cache * 2**20,
            scale=scale,
            requests=requests,
            **running_with,
        )
    report, failed, interrupted = _measure(settings, looked_at.path)
    showing.end(report, prefix_report, draw, failed=failed, interrupted=interrupted)


def _measure(settings: Settings, model: Path) -> tuple[Report, int, bool]:
    """The report, how many measurements failed, and whether it was interrupted."""
    from pymtp.bench import prefix_report
    from pymtp.bench.paired import PairedBench
    from pymtp.bench.prefix import PrefixArms, groups
    from pymtp.bench.report import measured_on
    from pymtp.model.model import Model

    with loading(settings.model):
        loaded = Model(model, n_gpu_layers=settings.gpu_layers, **settings.placing)
    with loaded:
        run = PairedBench(groups(settings), PrefixArms(loaded, settings).measure)
        interrupted = watch(run, prefix_report)
        report = prefix_report.Report(
            settings=asdict(settings),
            left_out=run.left_out + interrupted,
            measurements=run.measurements,
            **measured_on(loaded),
        )
    return report, sum(run.failed.values()), bool(interrupted)
