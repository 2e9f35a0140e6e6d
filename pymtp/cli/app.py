"""The commands assembled, and errors turned into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from pymtp.cli.batch import batch
from pymtp.cli.bench import bench
from pymtp.cli.chat import chat
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

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)  # its tables cut long names
for command in (generate, chat, serve, prefix, batch, info, tap, pull):
    app.command()(command)
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
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version, and llama.cpp's."),
    ] = False,
) -> None:
    """Multi-token-prediction speculative decoding for Qwen3-Next, Qwen3.5, 3.6 and 3.8 GGUF models."""
    if sys.stdout is None and context.invoked_subcommand != serve.__name__:  # that one writes to stderr only
        raise OSError("standard output is closed")


def app_main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line (None: the process's own).

    An error of this package, and one of the output, becomes one line and an exit code.
    """
    try:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a text may have characters that the terminal has not
        try:
            app(arguments)
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
        # Python flushes stdout once more at its end, and would fail again
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
