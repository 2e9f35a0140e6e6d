"""Tables on stdout: with lines around their cells in a terminal, and with tabs between their columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

UNLIMITED = 10_000  # columns


def print_tables(*parts: Table | Text | str) -> None:
    """Print tables, and texts between them, on stdout.

    In a file or a pipe, a line of a table is a line of text, with a tab between two cells: nothing is padded, cut or
    wrapped, and an empty line follows each table. So is a table that is too wide for the terminal.
    """
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, emoji=False)
    unlimited = console.options.update(width=UNLIMITED)
    for part in parts:
        if not isinstance(part, Table):
            print(_plain(part))
        elif terminal and Measurement.get(console, unlimited, part).minimum <= console.width:
            console.print(part)
        else:
            print(*_lines(part), "", sep="\n")


def _lines(table: Table) -> Iterator[str]:
    """Yield the lines of a table as text: its title, its headings, and its rows."""
    if table.title is not None:
        yield _plain(table.title)
    if table.show_header:
        yield "\t".join(_plain(column.header) for column in table.columns).rstrip()
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        yield "\t".join(_plain(cell) for cell in cells).rstrip()


def _plain(cell: RenderableType) -> str:
    """Return a cell as text of one line."""
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return "; ".join(text.replace("\t", " ").splitlines())
