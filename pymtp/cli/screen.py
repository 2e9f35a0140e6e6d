"""The consoles, and standard input. stdout belongs to the text; progress, figures and errors go to stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape

from pymtp.errors import InvalidRequestError

NEVER_CUT = 10_000  # columns

screen = Console(stderr=True, highlight=False, emoji=False)  # "auto:new: 12" is no emoji


def tables() -> Console:
    """stdout for tables: as wide as the terminal, or as the table where a file or a program reads."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else NEVER_CUT)


def show_error(error: Exception | str) -> None:
    """An error as one line."""
    screen.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)


def read_input(*, line: bool = False) -> str:
    """Standard input to its end, or its next line with the newline. Raises InvalidRequestError where it is closed, and
    for bytes that are no text."""
    if sys.stdin is None:
        raise InvalidRequestError("standard input is closed")
    try:
        return sys.stdin.readline() if line else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"cannot read standard input: {error}") from error
