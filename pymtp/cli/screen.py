"""The consoles. stdout belongs to the text; progress, figures and errors go to stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape

NEVER_CUT = 10_000  # columns

screen = Console(stderr=True, highlight=False, emoji=False)  # "auto:new: 12" is no emoji


def tables() -> Console:
    """stdout for tables: as wide as the terminal, or as the table where a file or a program reads."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else NEVER_CUT)


def show_error(error: Exception | str) -> None:
    """An error as one line."""
    screen.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
