"""What a prefill bench came to: medians and paired ratios, as tables, Markdown, CSV and JSON, and back from JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.prefill import MODES, NONE, Group, Measurement, MemoryUse, tokens
from pymtp.bench.report import Lines, Record, Spread, figures, run_with
from pymtp.stats import Stats

EXPLAINED = (
    "of none: ratio to the measurement without MTP beside it. host: the most resident memory, the weights' mapped "
    "pages included; grown: of that, what came after the context was begun. "
    "device: weights (the head's in every mode), cache and compute buffers."
)


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


class Report(Record[Measurement]):
    """A run and its cells."""

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
    return shared.as_json("prefill", report, cells=[asdict(cell) for cell in report.cells()])


def load(path: Path) -> Report:
    """A report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "prefill",
        lambda whole: Report(**shared.header(whole), measurements=[_measurement(m) for m in whole["measurements"]]),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> Measurement:
    memory = [MemoryUse(**device) for device in record["memory"]]
    return Measurement(**record | {"stats": shared.stats_of(record["stats"]), "memory": memory})


def as_csv(report: Report) -> str:
    """A line for each cell. Rates in tokens a second, ratios to `none`, sizes in tokens and bytes."""
    spreads = ("prefill", "prefill_ratio", "decode", "decode_ratio")
    return shared.as_csv([shared.flat(asdict(cell), spreads) for cell in report.cells()])


def tables(report: Report) -> list[Lines]:
    """The prefill, and the code that came after it; none when nothing was measured."""
    cells, settings = report.cells(), report.settings
    if not cells:
        return []
    named = [(tokens(cell.size), cell.mode, str(cell.depth or "-")) for cell in cells]
    of_prompts = [
        (
            *name,
            *figures(cell.prefill),
            *figures(cell.prefill_ratio),
            f"{cell.first_token_seconds:.2f}",
            f"{cell.elapsed_seconds:.1f}",
            *map(_bytes, (cell.host_peak_bytes, cell.host_grown_bytes, cell.device_bytes)),
        )
        for name, cell in zip(named, cells, strict=True)
    ]
    of_code = [
        (
            *name,
            *figures(cell.decode),
            *figures(cell.decode_ratio),
            "-" if cell.acceptance_rate is None else f"{cell.acceptance_rate:.0%}",
            "-" if cell.mean_accepted_length is None else f"{cell.mean_accepted_length:.2f}",
        )
        for name, cell in zip(named, cells, strict=True)
    ]
    first = ("prompt", "mode", "drafts", "tokens/s", "spread", "of none", "spread")
    return [
        Lines(
            f"Prefill: {settings['model']}, {run_with(settings)}",
            (*first, "first token, s", "elapsed, s", "host", "grown", "device"),
            of_prompts,
        ),
        Lines(
            f"Code output: {settings['gen']} tokens after each prompt"
            + (", synthetic acceptance" if settings["synthetic"] is not None else ""),
            (*first, "accepted", "tokens per round"),
            of_code,
        ),
    ]


def _bytes(n: int | None) -> str:
    if n is None:
        return "-"
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"


def _notes(report: Report) -> list[str]:
    """What a reader of the tables must know."""
    left_out = [f"left out: {line}" for line in report.left_out]
    rates = report.settings["synthetic"]
    return [
        *left_out,
        *([] if rates is None else [shared.synthetic(rates)]),
        f"{shared.SPREAD}. {EXPLAINED}",
        f"prompts: {report.settings['prompt']}",
        *shared.where_and_what(report),
    ]


def as_markdown(report: Report) -> str:
    """Both tables for a document."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: Report) -> Stack:
    """Both tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def going_on(group: Group, mode: str) -> str:
    """What is measured now, in a few words."""
    drafts = "" if mode == NONE else f", {group.depth} drafts"
    return f"{tokens(group.size)} {mode}{drafts}"


def done(m: Measurement) -> str:
    """A line on one measurement."""
    drafts = "" if m.mode == NONE else f", {m.depth} drafts, {m.stats.acceptance_rate:.0%} accepted"
    return (
        f"round {m.round + 1}: {tokens(m.size)} {m.mode}{drafts}: "
        f"prefill {m.stats.prefill_tokens_per_second:.1f}/s, decode {m.stats.decode_tokens_per_second:.1f}/s"
    )
