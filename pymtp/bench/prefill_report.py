"""What a prefill bench came to: medians and paired ratios, as tables, Markdown, CSV and JSON, and back from JSON."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from pymtp.bench.prefill import MODES, NONE, Measurement, tokens
from pymtp.context import DeviceMemory
from pymtp.errors import InvalidRequestError
from pymtp.stats import Stats

EXPLAINED = (
    "of none: ratio to the measurement without MTP beside it. host: the most resident memory, the weights' mapped "
    "pages included; grown: of that, what came after the context was begun. "
    "device: weights (the head's in every mode), cache and compute buffers."
)


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


@dataclass(frozen=True)
class Cell:
    """All measurements of one mode, size and depth, 0 for `none`. Rates in tokens a second, ratios to `none`."""

    size: int
    mode: str
    depth: int
    measurements: int
    prefill: Spread | None
    prefill_ratio: Spread | None
    decode: Spread | None
    decode_ratio: Spread | None
    acceptance_rate: float | None
    mean_accepted_length: float | None
    first_token_seconds: float
    elapsed_seconds: float
    host_peak_bytes: int | None
    host_grown_bytes: int | None
    device_bytes: int | None


@dataclass(frozen=True)
class Report:
    """Everything a run gave, as it stands in the JSON file. left_out: what was not measured, and why."""

    settings: dict[str, Any]
    model: dict[str, Any]
    machine: dict[str, Any]
    build: Mapping[str, Any]
    left_out: list[str]
    measurements: list[Measurement]

    def cells(self) -> list[Cell]:
        """By size, then in the order of the modes, then by depth."""
        beside = {(m.round, m.size, m.depth): m for m in self.measurements if m.mode == NONE}
        by_cell: dict[tuple[int, str, int], list[Measurement]] = {}
        for m in self.measurements:
            by_cell.setdefault((m.size, m.mode, 0 if m.mode == NONE else m.depth), []).append(m)
        order = sorted(by_cell, key=lambda cell: (cell[0], MODES.index(cell[1]), cell[2]))
        return [_cell(key, by_cell[key], beside) for key in order]


def _cell(
    key: tuple[int, str, int], measurements: Sequence[Measurement], beside: dict[tuple[int, int, int], Measurement]
) -> Cell:
    mode = key[1]
    pairs = [(m, beside[m.round, m.size, m.depth]) for m in measurements if (m.round, m.size, m.depth) in beside]

    def rates(rate: Callable[[Stats], float]) -> tuple[Spread | None, Spread | None]:
        ratios = [rate(m.stats) / rate(none.stats) for m, none in pairs if mode != NONE]
        return Spread.of([rate(m.stats) for m in measurements]), Spread.of(ratios)

    def most(values: Sequence[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    prefill, prefill_ratio = rates(lambda stats: stats.prefill_tokens_per_second)
    decode, decode_ratio = rates(lambda stats: stats.decode_tokens_per_second)
    drafted, accepted, rounds = (
        sum(getattr(m.stats, name) for m in measurements) for name in ("drafted", "accepted", "rounds")
    )
    return Cell(
        *key,
        measurements=len(measurements),
        prefill=prefill,
        prefill_ratio=prefill_ratio,
        decode=decode,
        decode_ratio=decode_ratio,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_accepted_length=1 + accepted / rounds if drafted else None,
        first_token_seconds=statistics.median(m.first_token_seconds for m in measurements),
        elapsed_seconds=statistics.median(m.elapsed_seconds for m in measurements),
        host_peak_bytes=most([m.host_peak_bytes for m in measurements]),
        host_grown_bytes=most([m.host_grown_bytes for m in measurements]),
        device_bytes=most([m.device_bytes for m in measurements]),
    )


def as_json(report: Report) -> str:
    """Every measurement, the cells made of them, and what they were made with and on. `load` reads it."""
    whole: dict[str, Any] = {"bench": "prefill", **asdict(report), "cells": [asdict(cell) for cell in report.cells()]}
    for record, m in zip(whole["measurements"], report.measurements, strict=True):
        record["stats"] = m.stats.as_dict()
    return json.dumps(whole, indent=1)


def load(path: Path) -> Report:
    """A report that was printed as JSON. Raises InvalidRequestError for any other file."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole["bench"] != "prefill":
            raise ValueError(f"it holds a bench of {whole['bench']}")
        measurements = [_measurement(record) for record in whole["measurements"]]
        names = ("settings", "model", "machine", "build", "left_out")
        return Report(**{name: whole[name] for name in names}, measurements=measurements)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(f"{path} cannot be read as a prefill bench: {error}") from error


def _measurement(record: dict[str, Any]) -> Measurement:
    stats = {name: record["stats"][name] for name in Stats.__dataclass_fields__}
    stats |= {name: tuple(stats[name]) for name in ("accepted_per_position", "depths")}
    memory = [DeviceMemory(**device) for device in record["memory"]]
    return Measurement(**record | {"stats": Stats(**stats), "memory": memory})


def as_csv(report: Report) -> str:
    """A line for each cell. Rates in tokens a second, ratios to `none`, sizes in tokens and bytes."""
    lines = [_flat(asdict(cell)) for cell in report.cells()]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def _flat(cell: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in cell.items():
        if name.startswith(("prefill", "decode")):
            spread = value or dict.fromkeys(("median", "low", "high"))
            flat |= {f"{name}_{which}": spread[which] for which in ("median", "low", "high")}
        else:
            flat[name] = value
    return flat


@dataclass(frozen=True)
class Lines:
    """A table as text: a row's first two fields are words, the others figures."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def tables(report: Report) -> list[Lines]:
    """The prefill, and the code that came after it; none when nothing was measured."""
    cells, settings = report.cells(), report.settings
    if not cells:
        return []
    named = [(tokens(cell.size), cell.mode, str(cell.depth or "-")) for cell in cells]
    of_prompts = [
        (
            *name,
            *_figures(cell.prefill),
            *_figures(cell.prefill_ratio),
            f"{cell.first_token_seconds:.2f}",
            f"{cell.elapsed_seconds:.1f}",
            *map(_bytes, (cell.host_peak_bytes, cell.host_grown_bytes, cell.device_bytes)),
        )
        for name, cell in zip(named, cells, strict=True)
    ]
    of_code = [
        (
            *name,
            *_figures(cell.decode),
            *_figures(cell.decode_ratio),
            "-" if cell.acceptance_rate is None else f"{cell.acceptance_rate:.0%}",
            "-" if cell.mean_accepted_length is None else f"{cell.mean_accepted_length:.2f}",
        )
        for name, cell in zip(named, cells, strict=True)
    ]
    first = ("prompt", "mode", "drafts", "tokens/s", "spread", "of none", "spread")
    return [
        Lines(
            f"Prefill: {settings['model']}, rounds: {settings['rounds']}, threads: {settings['threads']}",
            (*first, "first token, s", "elapsed, s", "host", "grown", "device"),
            of_prompts,
        ),
        Lines(
            f"Code output: {settings['gen']} tokens after each prompt",
            (*first, "accepted", "tokens a round"),
            of_code,
        ),
    ]


def _figures(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return "-", "-"
    digits = ".3f" if spread.median < 10 else ".1f" if spread.median < 1000 else ",.0f"
    low, high = spread.quartiles or (spread.low, spread.high)
    around = f"{low:{digits}}…{high:{digits}}" if spread.low != spread.high else "-"
    return f"{spread.median:{digits}}", around


def _bytes(n: int | None) -> str:
    if n is None:
        return "-"
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"


def _notes(report: Report) -> list[str]:
    """What a reader of the tables must know."""
    middle = "spread: the middle half of the rounds" if report.settings["rounds"] >= 4 else "spread: lowest to highest"
    devices = ", ".join(device["description"] for device in report.build["devices"])
    where = f"{report.machine['cpu']}, {report.machine['cores']} cores; devices: {devices}; {report.machine['system']}"
    what = f"pymtp {report.build['pymtp']}, llama.cpp {report.build['llama_cpp_commit']}, {report.build['compiler']}"
    left_out = [f"left out: {line}" for line in report.left_out]
    return [*left_out, f"{middle}. {EXPLAINED}", f"prompts: {report.settings['prompt']}", where, what]


def as_markdown(report: Report) -> str:
    """Both tables for a document."""
    blocks = []
    for table in tables(report):
        rule = ("---", "---", *["---:"] * (len(table.headings) - 2))
        lines = [f"| {' | '.join(line)} |" for line in (table.headings, rule, *table.rows)]
        blocks.append("\n".join([f"**{table.title}**", "", *lines]))
    return "\n\n".join([*blocks, *_notes(report)])


def as_tables(report: Report) -> Stack:
    """Both tables for a terminal."""
    shown = []
    for lines in tables(report):
        table = Table(*lines.headings, title=Text(lines.title), title_justify="left")
        for column in table.columns[2:]:
            column.justify = "right"
            column.no_wrap = column.header == "spread"
        for row, following in zip(lines.rows, [*lines.rows[1:], None], strict=True):
            table.add_row(*row, end_section=following is not None and following[0] != row[0])
        shown.append(table)
    return Stack(*shown, *map(Text, _notes(report)))
