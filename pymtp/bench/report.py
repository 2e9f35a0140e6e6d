"""What the reports of all benches share: spreads, the record of a run, tables, Markdown, CSV and JSON."""

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
    """Median, lowest and highest of some measurements; the quartiles of four or more."""

    median: float
    low: float
    high: float
    quartiles: tuple[float, float] | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        if not values:
            return None
        quarters = statistics.quantiles(values, n=4, method="inclusive") if len(values) >= 4 else None
        quartiles = (quarters[0], quarters[2]) if quarters else None
        return cls(statistics.median(values), min(values), max(values), quartiles)


# what Markdown would take for markup; an underscore within a word is none
MARKUP = re.compile(r"[\\*`<>\[\]&~|]|(?<!\w)_|_(?!\w)")


@dataclass(frozen=True)
class Record(Generic[M]):
    """Everything a run gave, as it stands in the JSON file. left_out: what was not measured, and why."""

    settings: dict[str, Any]
    model: dict[str, Any]
    machine: dict[str, Any]
    build: Mapping[str, Any]
    left_out: list[str]
    measurements: list[M]


def measured_on(model: Model) -> dict[str, Any]:
    """The fields of a Record that say what was measured, and where."""
    names = ("architecture", "weight_type", "n_params", "n_ctx_train")
    return {"model": {name: getattr(model, name) for name in names}, "machine": machine(), "build": build_info()}


def run_with(settings: Mapping[str, Any]) -> str:
    """Of the settings what a title tells beside what was measured."""
    placing = "".join(f", {name}: {value}" for name, value in settings.get("placing", {}).items())
    return f"rounds: {settings['rounds']}, threads: {settings['threads']}{placing}"


def as_json(bench: str, record: Record[Any], leave_out: Sequence[str] = (), **more: object) -> str:
    """A record of measurements, for `load`; with all figures of their `stats`. Lists of numbers stand on one line each.

    leave_out: fields of the measurements."""
    whole: dict[str, Any] = {"bench": bench, **asdict(record), **more}
    for one, m in zip(whole["measurements"], record.measurements, strict=True):
        if "stats" in one:
            one["stats"] = m.stats.as_dict()
        for name in leave_out:
            del one[name]
    text = json.dumps(whole, indent=1)
    return re.sub(r"\[\n[-\d.,e\s]*\]", lambda found: "[" + " ".join(found[0][1:-1].split()) + "]", text)


def load(path: Path, bench: str, build: Callable[[dict[str, Any]], T], prints: Sequence[Callable[[T], str]]) -> T:
    """What `build` makes of a file that as_json wrote. Raises InvalidRequestError for any other file, and for one that
    `prints` cannot print: a damaged file is often only found out by what is computed from it."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole["bench"] != bench:
            raise ValueError(f"it holds a bench of {whole['bench']}")
        record = build(whole)
        for as_text in prints:
            as_text(record)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InvalidRequestError(f"{path} cannot be read as a {bench} bench: {why}") from error
    return record


def header(whole: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Record but for its measurements, from what `load` read."""
    return {name: whole[name] for name in ("settings", "model", "machine", "build", "left_out")}


def stats_of(record: dict[str, Any]) -> Stats:
    """The Stats that as_json wrote."""
    later: dict[str, Any] = {"outside_per_position": (), "queue_seconds": 0.0, "time_to_first_token": 0.0}
    later["thinking_tokens"] = 0
    known = {field.name: (later | record)[field.name] for field in fields(Stats)}
    lists = ("accepted_per_position", "outside_per_position", "depths")
    return Stats(**known | {name: tuple(known[name]) for name in lists})


def accepted_per_position(several: Sequence[Stats]) -> list[float]:
    """Of the first, second, … drafts that were verified in all of these, the share that was accepted."""
    depths = [depth for stats in several for depth in stats.depths]
    accepted = [stats.accepted_per_position for stats in several]
    return [
        sum(counts[i] for counts in accepted if i < len(counts)) / sum(depth > i for depth in depths)
        for i in range(max(depths, default=0))
    ]


def synthetic(rates: Sequence[float]) -> str:
    """What a reader of made-up acceptance must know."""
    told = ", ".join(f"{rate:g}" for rate in rates)
    return (
        f"SYNTHETIC: drafts counted as accepted at given rates ({told}), whatever the target said. "
        "The text means nothing, speeds are those of a head that good."
    )


def as_csv(lines: Sequence[dict[str, Any]]) -> str:
    """A heading and a line for each."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def flat(cell: dict[str, Any], spreads: Sequence[str]) -> dict[str, Any]:
    """A cell's fields for CSV: those named in `spreads` as three numbers."""
    line: dict[str, Any] = {}
    for name, value in cell.items():
        if name in spreads:
            spread = value or dict.fromkeys(("median", "low", "high"))
            line |= {f"{name}_{which}": spread[which] for which in ("median", "low", "high")}
        else:
            line[name] = value
    return line


def figures(spread: Spread | None) -> tuple[str, str]:
    """The median, and what SPREAD says."""
    if spread is None:
        return "-", "-"
    digits = ".3f" if spread.median < 10 else ".1f" if spread.median < 1000 else ",.0f"
    low, high = spread.quartiles or (spread.low, spread.high)
    around = f"{low:{digits}}…{high:{digits}}" if spread.low != spread.high else "-"
    return f"{spread.median:{digits}}", around


def where_and_what(record: Record[Any]) -> list[str]:
    """The machine, and the build."""
    devices = ", ".join(device["description"] for device in record.build["devices"])
    build = record.build
    drivers = "".join(f", driver {gpu['driver']}" for gpu in record.machine["gpus"][:1])
    machine = record.machine
    return [
        f"{machine['cpu']}, {machine['cores']} cores; devices: {devices}{drivers}; {machine['system']}",
        f"pymtp {build['pymtp']}, llama.cpp {build['llama_cpp_commit']}, {build['compiler']}",
    ]


@dataclass(frozen=True)
class Lines:
    """A table as text: a row's first two fields are words, the others figures."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def as_markdown(tables: Iterable[Lines], notes: Sequence[str]) -> str:
    """Tables for a document."""
    blocks = []
    for table in tables:
        rule = ("---", "---", *["---:"] * (len(table.headings) - 2))
        lines = [f"| {' | '.join(line)} |" for line in (table.headings, rule, *table.rows)]
        title = MARKUP.sub(r"\\\g<0>", table.title)
        blocks.append("\n".join([f"**{title}**", "", *lines]))
    return "\n\n".join([*blocks, *notes])


def as_tables(tables: Iterable[Lines], notes: Sequence[str]) -> Stack:
    """Tables for a terminal; rows that begin alike stand together."""
    shown = []
    for lines in tables:
        table = Table(*lines.headings, title=Text(lines.title), title_justify="left")
        for column in table.columns[2:]:
            column.justify = "right"
            column.no_wrap = column.header == "spread"
        for row, following in zip(lines.rows, [*lines.rows[1:], None], strict=True):
            table.add_row(*row, end_section=following is not None and following[0] != row[0])
        shown.append(table)
    return Stack(*shown, *map(Text, notes))
