"""Tables of benches: columns over rows of figures, as text of cells, Markdown, a terminal's tables and CSV."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from rich.table import Table as RichTable
from rich.text import Text

# the figures of one row of a report, by their names in JSON and CSV
Cell = SimpleNamespace

SPREAD = "spread"  # format of a column with a Spread, and heading of the second column that it takes
SPREAD_NOTE = "spread: the quartiles of four or more measurements, or the lowest and the highest of fewer measurements"
# characters that have a meaning in Markdown; an underscore within a word has none
MARKUP = re.compile(r"[\\*`<>\[\]&~|]|(?<!\w)_|_(?!\w)")


@dataclass(frozen=True)
class Spread:
    """The median, the lowest and the highest of some values, and their quartiles (None for fewer than four values)."""

    median: float
    low: float
    high: float
    quartiles: tuple[float, float] | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Compute the spread of values; None for an empty list."""
        if not values:
            return None
        quarters = statistics.quantiles(values, n=4, method="inclusive") if len(values) >= 4 else None
        quartiles = (quarters[0], quarters[2]) if quarters else None
        return cls(statistics.median(values), min(values), max(values), quartiles)


def format_spread(spread: Spread | None) -> tuple[str, str]:
    """Return the median and the range of a spread as strings, see SPREAD_NOTE; "-" for a missing value."""
    if spread is None:
        return "-", "-"
    digits = ".3f" if spread.median < 10 else ".1f" if spread.median < 1000 else ",.0f"
    low, high = spread.quartiles or (spread.low, spread.high)
    range_text = f"{low:{digits}}…{high:{digits}}" if spread.low != spread.high else "-"
    return f"{spread.median:{digits}}", range_text


class Column(NamedTuple):
    """A column of a table.

    value: name of a figure of the row, or a function that computes the value from the row.
    form: format of the value, such as ".2f", or SPREAD. A value that is None is shown as "-".
    """

    heading: str
    value: str | Callable[[Any], Any]
    form: str = ""

    def texts(self, row: Any) -> tuple[str, ...]:
        """Return the value of a row as one string, or as two for a Spread."""
        value = getattr(row, self.value) if isinstance(self.value, str) else self.value(row)
        if self.form == SPREAD:
            return format_spread(value)
        return ("-" if value is None else f"{value:{self.form}}",)


@dataclass(frozen=True)
class Table:
    """A table. The first two columns hold words, all others hold numbers."""

    title: str
    columns: Sequence[Column]
    figures: Sequence[Any]

    @property
    def headings(self) -> tuple[str, ...]:
        """Return the headings of all columns."""
        headings = ((c.heading, SPREAD) if c.form == SPREAD else (c.heading,) for c in self.columns)
        return tuple(text for texts in headings for text in texts)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return the strings of all rows."""
        return [tuple(text for column in self.columns for text in column.texts(row)) for row in self.figures]


def as_markdown(tables: Iterable[Table], notes: Sequence[str]) -> str:
    """Format tables and notes as Markdown."""
    blocks = []
    for table in tables:
        rule = ("---", "---", *["---:"] * (len(table.headings) - 2))
        lines = [f"| {' | '.join(line)} |" for line in (table.headings, rule, *table.rows)]
        title = MARKUP.sub(r"\\\g<0>", table.title)
        blocks.append("\n".join([f"**{title}**", "", *lines]))
    return "\n\n".join([*blocks, *notes])


def as_tables(tables: Iterable[Table], notes: Sequence[str]) -> list[RichTable | Text]:
    """Format tables and notes for a terminal. A line separates rows that differ in the first column."""
    rich_tables: list[RichTable | Text] = []
    for table in tables:
        rich_table, rows = RichTable(*table.headings, title=Text(table.title), title_justify="left"), table.rows
        for column in rich_table.columns[2:]:
            column.justify, column.no_wrap = "right", column.header == SPREAD
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            rich_table.add_row(*row, end_section=following is not None and following[0] != row[0])
        rich_tables.append(rich_table)
    return [*rich_tables, *map(Text, notes)]


def as_csv(lines: Sequence[dict[str, Any]]) -> str:
    """Format dictionaries that all have the same keys as CSV, with the keys in the first line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")
