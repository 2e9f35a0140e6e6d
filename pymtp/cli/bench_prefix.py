"""The command `pymtp bench prefix`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pymtp.cli.bench_output import ReportOptions, run_with_progress
from pymtp.cli.model_file import model_file
from pymtp.cli.options import ModelName, expand_options
from pymtp.cli.running import BenchOptions
from pymtp.cli.screen import loading_status

if TYPE_CHECKING:
    from pymtp.bench.prefix import PrefixSettings
    from pymtp.bench.prefix_report import PrefixReport

TRACES = "chat,agents,document,four,at-once,prefixes,messages,alone,disk"
MAX_SEQUENCES = 256


@expand_options
def prefix(
    *,
    model: ModelName = None,
    traces: Annotated[str, typer.Option(help="Traces to run, separated by commas.")] = TRACES,
    ctx: Annotated[
        int | None,
        typer.Option(
            "--ctx", "-c", min=1, help="Context length in tokens.", show_default="the longest text of the trace"
        ),
    ] = None,
    n_seq_max: Annotated[
        int, typer.Option("--n-seq-max", "-s", min=1, max=MAX_SEQUENCES, help="Requests that run at once.")
    ] = 4,
    cache: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="MIB",
            help="Host memory for cached prefixes.",
            show_default="half of the prefixes in the traces prefixes and messages; LLM's default in others",
        ),
    ] = None,
    scale: Annotated[float, typer.Option(min=0.001, max=100, help="Multiply all lengths in the traces by this.")] = 1.0,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Run only this many requests of each trace.", show_default="all")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Measurements of each trace.")] = 3,
    run_options: BenchOptions,
    report_options: ReportOptions,
) -> None:
    """Compare prompts with and without a prefix cache.

    The prompts of a trace have common prefixes. The report shows the prefilled tokens, the time to the first token, and
    the memory of the cache. Ctrl-C ends the bench and shows the measurements made so far.
    """
    from pymtp.bench import prefix_report
    from pymtp.bench.prefix import PrefixSettings
    from pymtp.bench.prefix_plot import plot as draw
    from pymtp.bench.traces import NAMES
    from pymtp.cli.bench_requests import read_names
    from pymtp.model.model import Model

    if report_options.show_saved(prefix_report, draw):
        return
    chosen_traces = read_names("--traces", traces, NAMES)
    run_settings = run_options.settings()
    file, run_settings["placing"] = model_file(model, run_settings["placing"])
    with Model(file, vocab_only=True, head=run_settings["placing"].get("head")) as header:
        settings = PrefixSettings(
            model=header.file_names,
            traces=chosen_traces,
            rounds=rounds,
            n_ctx=ctx,
            n_seq_max=n_seq_max,
            cache_bytes=None if cache is None else cache * 2**20,
            scale=scale,
            requests=requests,
            **run_settings,
        )
    report, failed, interrupted = _measure(settings, header.path)
    report_options.finish(report, prefix_report, draw, failed=failed, interrupted=interrupted)


def _measure(settings: PrefixSettings, model: Path) -> tuple[PrefixReport, int, bool]:
    """Run the bench. Return its report, the number of failed measurements, and whether Ctrl-C interrupted it."""
    from pymtp.bench import prefix_report
    from pymtp.bench.paired import PairedBench
    from pymtp.bench.prefix import PrefixArms, groups
    from pymtp.bench.report import run_environment
    from pymtp.model.model import Model

    with loading_status(settings.model):
        loaded = Model(model, n_gpu_layers=settings.gpu_layers, **settings.placing)
    with loaded:
        bench = PairedBench(groups(settings), PrefixArms(loaded, settings).measure)
        interrupted = run_with_progress(bench, prefix_report)
        report = prefix_report.PrefixReport(
            settings=asdict(settings),
            left_out=bench.left_out + interrupted,
            measurements=bench.measurements,
            **run_environment(loaded),
        )
    return report, sum(bench.failed.values()), bool(interrupted)
