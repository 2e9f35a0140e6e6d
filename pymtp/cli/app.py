"""The command-line application with all commands. It turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from pymtp.cli.batch import batch
from pymtp.cli.bench_batch import batch as bench_batch
from pymtp.cli.bench_decode import decode as bench_decode
from pymtp.cli.bench_prefill import prefill as bench_prefill
from pymtp.cli.bench_prefix import prefix as bench_prefix
from pymtp.cli.bench_rows import rows as bench_rows
from pymtp.cli.chat import chat
from pymtp.cli.command import Command, Group
from pymtp.cli.exit_codes import FAILED, MISUSED, NOT_LOADED
from pymtp.cli.generate import generate
from pymtp.cli.info import info
from pymtp.cli.prefix import prefix
from pymtp.cli.pull import pull
from pymtp.cli.screen import show_error
from pymtp.cli.serve import serve
from pymtp.cli.tap import tap
from pymtp.errors import InvalidRequestError, ModelLoadError, PymtpError
from pymtp.native.build_info import build_info

# rich_markup_mode is None because the tables that rich makes of a help page would cut long option names
app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (generate, chat, serve, prefix, batch, info, tap, pull):
    app.command(cls=Command)(command)
bench = typer.Typer(cls=Group, help="Measure pymtp on this machine.", no_args_is_help=True, rich_markup_mode=None)
for command in (bench_decode, bench_batch, bench_prefill, bench_prefix, bench_rows):
    bench.command(cls=Command)(command)
app.add_typer(bench, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        build = build_info()
        print(f"pymtp {build['pymtp']}, llama.cpp {build['llama_cpp_commit']}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the versions of pymtp and llama.cpp."
        ),
    ] = False,
) -> None:
    """Multi-token-prediction speculative decoding for Qwen3-Next, Qwen3.5, 3.6 and 3.8 GGUF models."""
    if sys.stdout is None and context.invoked_subcommand != serve.__name__:  # serve writes to stderr only
        raise OSError("standard output is closed")


def app_main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and end the process.

    An error that pymtp raises, or a failure to write the output, is printed as one line on stderr and becomes an exit
    code.

    arguments: None for the arguments of this process.
    """
    try:
        if isinstance(sys.stdout, TextIOWrapper):
            # print an escape for a character that the encoding of the output lacks, instead of failing
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            app(arguments, prog_name="pymtp")  # completion in a shell is of this name, also by python -m pymtp
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except PymtpError as error:
        show_error(error)
        code = FAILED
        if isinstance(error, InvalidRequestError):
            code = MISUSED
        elif isinstance(error, ModelLoadError):
            code = NOT_LOADED
        sys.exit(code)
    except OSError as error:
        show_error(error)
        # Python flushes stdout once more when it exits; without this, that would fail again and print a traceback
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
