"""The command `pymtp bench rows`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from pymtp.cli.bench_output import ReportOptions, bench_model
from pymtp.cli.options import ModelName, expand_options
from pymtp.cli.running import BenchOptions

MAX_ROWS = 65  # a verification has at most 64 drafts and the token before them


@expand_options
def rows(
    *,
    context: typer.Context,
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
    prompt_tokens: Annotated[int, typer.Option(min=1, max=2**20, help="Tokens before the rows, such as 16384.")] = 64,
    run_options: BenchOptions,
    report_options: ReportOptions,
) -> None:
    """Time verifications and chains of drafts relative to one row.

    Each is timed as a whole and by operation. Ctrl-C ends the bench and shows the measurements made so far.
    """
    from pymtp.bench.rows import RowsSettings, open_bench
    from pymtp.bench.rows_report import RowsReport
    from pymtp.cli.bench_values import check_head, read_numbers

    if report_options.show_saved(context, RowsReport):
        return
    numbers = read_numbers("--rows", rows, MAX_ROWS)
    chain_lengths = read_numbers("--drafts", drafts, MAX_ROWS - 1)
    run_settings = run_options.settings()
    header = bench_model(model, run_settings)
    check_head(header)
    settings = RowsSettings(
        model=header.file_names,
        rows=tuple(sorted({1, *numbers})),
        steps=tuple(sorted(set(chain_lengths))),
        rounds=rounds,
        memory=memory * 2**20,
        alike=alike,
        prompt_tokens=prompt_tokens,
        **run_settings,
    )
    report_options.measure(settings, header.path, open_bench, RowsReport)
