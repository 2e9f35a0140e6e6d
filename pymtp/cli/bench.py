"""`pymtp bench`: the benches as one group of commands."""

from __future__ import annotations

import typer

from pymtp.cli.bench_batch import batch
from pymtp.cli.bench_decode import decode
from pymtp.cli.bench_prefill import prefill
from pymtp.cli.bench_prefix import prefix
from pymtp.cli.bench_rows import rows

bench = typer.Typer(help="Measure pymtp on this machine.", no_args_is_help=True, rich_markup_mode=None)
for command in (decode, batch, prefill, prefix, rows):
    bench.command()(command)
