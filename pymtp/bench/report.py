"""The parts that the reports of all benches share: spreads, records, tables, Markdown, CSV and JSON."""

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

SPREAD = "spread: the quartiles of four or more measurements, or the lowest and the highest of fewer measurements"


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


# characters that have a meaning in Markdown; an underscore within a word has none
MARKUP = re.compile(r"[\\*`<>\[\]&~|]|(?<!\w)_|_(?!\w)")


@dataclass(frozen=True)
class Record(Generic[M]):
    """All results of a bench, as in its JSON file.

    settings: settings of the bench.
    model, machine, build: descriptions, see run_environment.
    left_out: a line about each missing measurement, with the reason.
    """

    settings: dict[str, Any]
    model: dict[str, Any]
    machine: dict[str, Any]
    build: Mapping[str, Any]
    left_out: list[str]
    measurements: list[M]


def run_environment(model: Model) -> dict[str, Any]:
    """Return the fields of a Record that describe the model, the machine and this build of pymtp."""
    names = ("architecture", "weight_type", "n_params", "n_ctx_train")
    return {"model": {name: getattr(model, name) for name in names}, "machine": machine(), "build": build_info()}


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Format the settings that all benches share, for the title of a table."""
    placing = "".join(f", {name}: {value}" for name, value in settings.get("placing", {}).items())
    return f"rounds: {settings['rounds']}, threads: {settings['threads']}{placing}"


def as_json(bench: str, record: Record[Any], leave_out: Sequence[str] = (), **more: object) -> str:
    """Format a record as JSON, for `load`, with all figures of the measurements' `stats`.

    Each list of numbers is on one line.

    bench: name of the bench, such as "decode".
    leave_out: fields of the measurements that are not written.
    more: further keys of the JSON object.
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

    Raises InvalidRequestError for any other file, and for a report that one of `formatters` cannot print: many faults
    of a damaged file are found only when figures are computed.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole["bench"] != bench:
            raise ValueError(f"it is the report of a {whole['bench']} bench")
        record = build(whole)
        for formatter in formatters:
            formatter(record)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidRequestError(f"{path} cannot be read as the report of a {bench} bench: {reason}") from error
    return record


def header(whole: dict[str, Any]) -> dict[str, Any]:
    """Return all fields of a Record except the measurements, from the JSON object of a report."""
    return {name: whole[name] for name in ("settings", "model", "machine", "build", "left_out")}


def read_stats(record: dict[str, Any]) -> Stats:
    """Convert the `stats` of a measurement in a JSON report back to Stats."""
    # reports of earlier versions lack these fields
    defaults: dict[str, Any] = {"outside_per_position": (), "queue_seconds": 0.0, "time_to_first_token": 0.0}
    defaults["thinking_tokens"] = 0
    known = {field.name: (defaults | record)[field.name] for field in fields(Stats)}
    lists = ("accepted_per_position", "outside_per_position", "depths")
    return Stats(**known | {name: tuple(known[name]) for name in lists})


def accepted_per_position(all_stats: Sequence[Stats]) -> list[float]:
    """Return, for the first, second, … draft of a round, the share that was accepted, over all rounds of all stats."""
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
        f"SYNTHETIC: drafts were accepted at given rates ({shown}), regardless of the target's output. "
        "The text has no meaning; the speeds are those of a head with such an acceptance."
    )


def as_csv(lines: Sequence[dict[str, Any]]) -> str:
    """Format dictionaries that all have the same keys as CSV, with the keys in the first line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def flatten(cell: dict[str, Any], spreads: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a cell for CSV. Each field named in `spreads` becomes three: its median, low and high."""
    line: dict[str, Any] = {}
    for name, value in cell.items():
        if name in spreads:
            spread = value or dict.fromkeys(("median", "low", "high"))
            line |= {f"{name}_{which}": spread[which] for which in ("median", "low", "high")}
        else:
            line[name] = value
    return line


def format_spread(spread: Spread | None) -> tuple[str, str]:
    """Return the median and the range of a spread as strings, see SPREAD; "-" for a missing value."""
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
    """A table of strings. The first two columns hold words, all others hold numbers."""

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
