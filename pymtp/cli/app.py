"""The commands assembled, and errors turned into exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from rich.markup import escape

from pymtp.cli.bench import bench
from pymtp.cli.chat import chat
from pymtp.cli.exit_codes import FAILED, MISUSED, NOT_LOADED
from pymtp.cli.generate import generate
from pymtp.cli.info import info
from pymtp.cli.screen import screen
from pymtp.cli.tap import tap
from pymtp.errors import InvalidRequestError, ModelLoadError, PymtpError

app = typer.Typer(
    help="Multi-token-prediction speculative decoding for Qwen3.5, 3.6 and 3.8 GGUF models.",
    no_args_is_help=True,
    add_completion=False,
)
for command in (generate, chat, info, tap):
    app.command()(command)
app.add_typer(bench, name="bench")


def app_main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line (None: the process's own); an error of this package becomes one line and an exit code."""
    try:
        app(arguments)
    except PymtpError as error:
        screen.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        code = FAILED
        if isinstance(error, InvalidRequestError):
            code = MISUSED
        elif isinstance(error, ModelLoadError):
            code = NOT_LOADED
        sys.exit(code)
