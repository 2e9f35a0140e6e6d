"""Reports of all benches: spreads, the record of a run, tables, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from pymtp.bench.machine import machine
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.native.build_info import build_info
from pymtp.stats import Stats

T = TypeVar("T")
M = TypeVar("M")

SPREAD = "spread: the middle half of four or more measurements, lowest to highest of fewer"


@dataclass(frozen=True)
class Spread:
    """The median, lowest and highest of some measurements, and the quartiles of four or more."""

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


# characters that Markdown takes for markup; an underscore within a word is not markup
MARKUP = re.compile(r"[\\*`<>\[\]&~|]|(?<!\w)_|_(?!\w)")


@dataclass(frozen=True)
class Record(Generic[M]):
    """All results of a run, as in its JSON file. left_out: lines about missing measurements, and the reason."""

    settings: dict[str, Any]
    model: dict[str, Any]
    machine: dict[str, Any]
    build: Mapping[str, Any]
    left_out: list[str]
    measurements: list[M]


def run_environment(model: Model) -> dict[str, Any]:
    """Return the fields of a Record about the model, the machine and the build."""
    names = ("architecture", "weight_type", "n_params", "n_ctx_train")
    return {"model": {name: getattr(model, name) for name in names}, "machine": machine(), "build": build_info()}


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Format the settings that all benches share, for the title of a table."""
    placing = "".join(f", {name}: {value}" for name, value in settings.get("placing", {}).items())
    return f"rounds: {settings['rounds']}, threads: {settings['threads']}{placing}"


def as_json(bench: str, record: Record[Any], leave_out: Sequence[str] = (), **more: object) -> str:
    """Format a record as JSON, for `load`, with all figures of the measurements' `stats`.

    leave_out: fields of the measurements. Each list of numbers is on one line.
    """
    whole: dict[str, Any] = {"bench": bench, **asdict(record), **more}
    for entry, m in zip(whole["measurements"], record.measurements, strict=True):
        if "stats" in entry:
            entry["stats"] = m.stats.as_dict()
        for name in leave_out:
            del entry[name]
    text = json.dumps(whole, indent=1)
    return re.sub(r"\[\n[-\d.,e\s]*\]", lambda match: "[" + " ".join(match[0][1:-1].split()) + "]", text)


def load(path: Path, bench: str, build: Callable[[dict[str, Any]], T], formatters: Sequence[Callable[[T], str]]) -> T:
    """Load a report that as_json wrote, and convert it with `build`.

    Raises InvalidRequestError for any other file, and for one that `formatters` cannot print: many faults of a damaged
    file show only when figures are computed from it.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole["bench"] != bench:
            raise ValueError(f"it holds a bench of {whole['bench']}")
        record = build(whole)
        for formatter in formatters:
            formatter(record)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidRequestError(f"{path} cannot be read as a {bench} bench: {reason}") from error
    return record


def header(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Record from a loaded file, except its measurements."""
    return {name: whole[name] for name in ("settings", "model", "machine", "build", "left_out")}


def read_stats(record: dict[str, Any]) -> Stats:
    """Convert a dictionary of as_json back to Stats."""
    # older files lack these fields
    defaults: dict[str, Any] = {"outside_per_position": (), "queue_seconds": 0.0, "time_to_first_token": 0.0}
    defaults["thinking_tokens"] = 0
    known = {field.name: (defaults | record)[field.name] for field in fields(Stats)}
    lists = ("accepted_per_position", "outside_per_position", "depths")
    return Stats(**known | {name: tuple(known[name]) for name in lists})


def accepted_per_position(all_stats: Sequence[Stats]) -> list[float]:
    """Return the share of accepted drafts at the first, second, … position, over all rounds of all stats."""
    depths = [depth for stats in all_stats for depth in stats.depths]
    accepted = [stats.accepted_per_position for stats in all_stats]
    return [
        sum(counts[i] for counts in accepted if i < len(counts)) / sum(depth > i for depth in depths)
        for i in range(max(depths, default=0))
    ]


def synthetic_note(rates: Sequence[float]) -> str:
    """Return the note of a report with synthetic acceptance."""
    shown = ", ".join(f"{rate:g}" for rate in rates)
    return (
        f"SYNTHETIC: drafts counted as accepted at given rates ({shown}), whatever the target said. "
        "The text means nothing, speeds are those of a head that good."
    )


def as_csv(lines: Sequence[dict[str, Any]]) -> str:
    """Format dictionaries with the same keys as CSV with a heading."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def flatten(cell: dict[str, Any], spreads: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a cell for CSV. Each field in `spreads` becomes three numbers."""
    line: dict[str, Any] = {}
    for name, value in cell.items():
        if name in spreads:
            spread = value or dict.fromkeys(("median", "low", "high"))
            line |= {f"{name}_{which}": spread[which] for which in ("median", "low", "high")}
        else:
            line[name] = value
    return line


def format_spread(spread: Spread | None) -> tuple[str, str]:
    """Format the median and the range of a spread, see SPREAD; "-" where there is none."""
    if spread is None:
        return "-", "-"
    digits = ".3f" if spread.median < 10 else ".1f" if spread.median < 1000 else ",.0f"
    low, high = spread.quartiles or (spread.low, spread.high)
    range_text = f"{low:{digits}}…{high:{digits}}" if spread.low != spread.high else "-"
    return f"{spread.median:{digits}}", range_text


def describe_environment(record: Record[Any]) -> list[str]:
    """Return two lines about the machine and the build."""
    devices = ", ".join(device["description"] for device in record.build["devices"])
    build = record.build
    drivers = "".join(f", driver {gpu['driver']}" for gpu in record.machine["gpus"][:1])
    machine = record.machine
    return [
        f"{machine['cpu']}, {machine['cores']} cores; devices: {devices}{drivers}; {machine['system']}",
        f"pymtp {build['pymtp']}, llama.cpp {build['llama_cpp_commit']}, {build['compiler']}",
    ]


@dataclass(frozen=True)
class TextTable:
    """A table of strings. The first two columns of a row are words, the others figures."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def as_markdown(tables: Iterable[TextTable], notes: Sequence[str]) -> str:
    """Format tables and notes as Markdown."""
    blocks = []
    for table in tables:
        rule = ("---", "---", *["---:"] * (len(table.headings) - 2))
        lines = [f"| {' | '.join(line)} |" for line in (table.headings, rule, *table.rows)]
        title = MARKUP.sub(r"\\\g<0>", table.title)
        blocks.append("\n".join([f"**{title}**", "", *lines]))
    return "\n\n".join([*blocks, *notes])


def as_tables(tables: Iterable[TextTable], notes: Sequence[str]) -> Stack:
    """Format tables and notes for a terminal. A line separates rows that differ in the first column."""
    rich_tables = []
    for text_table in tables:
        table = Table(*text_table.headings, title=Text(text_table.title), title_justify="left")
        for column in table.columns[2:]:
            column.justify = "right"
            column.no_wrap = column.header == "spread"
        for row, following in zip(text_table.rows, [*text_table.rows[1:], None], strict=True):
            table.add_row(*row, end_section=following is not None and following[0] != row[0])
        rich_tables.append(table)
    return Stack(*rich_tables, *map(Text, notes))
