"""The command `pymtp bench prefix`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from pymtp.cli.bench_output import ReportOptions, bench_model
from pymtp.cli.options import COUNT, CTX, ModelName, expand_options
from pymtp.cli.running import BenchOptions

TRACES = "chat,agents,document,four,at-once,prefixes,messages,alone,disk"
MAX_SEQUENCES = 256


@expand_options
def prefix(
    *,
    context: typer.Context,
    model: ModelName = None,
    traces: Annotated[str, typer.Option(help="Traces to run, separated by commas.")] = TRACES,
    ctx: Annotated[
        int | None,
        typer.Option(*CTX, **COUNT, help="Context length in tokens.", show_default="the longest text of the trace"),
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
    from pymtp.bench.prefix import PrefixSettings, open_bench
    from pymtp.bench.prefix_report import PrefixReport
    from pymtp.bench.traces import NAMES
    from pymtp.cli.bench_values import read_names

    if report_options.show_saved(context, PrefixReport):
        return
    chosen_traces = read_names("--traces", traces, NAMES)
    run_settings = run_options.settings()
    header = bench_model(model, run_settings)
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
    report_options.measure(settings, header.path, open_bench, PrefixReport)
