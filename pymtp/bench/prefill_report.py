"""Report of a prefill bench: medians and paired ratios, as tables, Markdown, CSV and JSON, and loaded from JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.prefill import MODES, NONE, MemoryUse, PrefillGroup, PrefillMeasurement, format_size
from pymtp.bench.report import Record, Spread, TextTable, describe_settings, format_spread
from pymtp.stats import Stats

EXPLAINED = (
    "of none: speed relative to the measurement without MTP on the same prompt in the same round. host: the largest "
    "resident memory of the process, mapped pages of the weights included. grown: the part of host that was added "
    "after the measurement started. device: memory of weights (with those of the head in every mode), caches and "
    "compute buffers."
)


@dataclass(frozen=True)
class PrefillCell:
    """All measurements of one mode, size and depth (0 for mode `none`).

    measurements: number of measurements.
    prefill, decode: speeds in tokens/s.
    prefill_ratio, decode_ratio: speeds relative to mode `none` in the same group.
    mean_accepted_length: mean number of tokens that a round generates; None without drafts.
    first_token_seconds, elapsed_seconds: medians.
    host_peak_bytes, host_grown_bytes, device_bytes: largest values.
    """

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


class PrefillReport(Record[PrefillMeasurement]):
    """All measurements of a prefill bench, and their summary in cells."""

    def cells(self) -> list[PrefillCell]:
        """Return the cells, sorted by size, then in the order of MODES, then by depth."""
        baselines = {(m.round, m.size, m.depth): m for m in self.measurements if m.mode == NONE}
        by_cell: dict[tuple[int, str, int], list[PrefillMeasurement]] = {}
        for m in self.measurements:
            by_cell.setdefault((m.size, m.mode, 0 if m.mode == NONE else m.depth), []).append(m)
        order = sorted(by_cell, key=lambda cell: (cell[0], MODES.index(cell[1]), cell[2]))
        return [_cell(key, by_cell[key], baselines) for key in order]


def _cell(
    key: tuple[int, str, int],
    measurements: Sequence[PrefillMeasurement],
    baselines: dict[tuple[int, int, int], PrefillMeasurement],
) -> PrefillCell:
    mode = key[1]
    pairs = [(m, baselines[m.round, m.size, m.depth]) for m in measurements if (m.round, m.size, m.depth) in baselines]

    def rates(rate: Callable[[Stats], float]) -> tuple[Spread | None, Spread | None]:
        ratios = [rate(m.stats) / rate(none.stats) for m, none in pairs if mode != NONE]
        return Spread.of([rate(m.stats) for m in measurements]), Spread.of(ratios)

    def largest(values: Sequence[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    prefill, prefill_ratio = rates(lambda stats: stats.prefill_tokens_per_second)
    decode, decode_ratio = rates(lambda stats: stats.decode_tokens_per_second)
    drafted, accepted, rounds = (
        sum(getattr(m.stats, name) for m in measurements) for name in ("drafted", "accepted", "rounds")
    )
    return PrefillCell(
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
        host_peak_bytes=largest([m.host_peak_bytes for m in measurements]),
        host_grown_bytes=largest([m.host_grown_bytes for m in measurements]),
        device_bytes=largest([m.device_bytes for m in measurements]),
    )


def as_json(report: PrefillReport) -> str:
    """Format all measurements, their cells, the settings and the environment as JSON, for `load`."""
    return shared.as_json("prefill", report, cells=[asdict(cell) for cell in report.cells()])


def load(path: Path) -> PrefillReport:
    """Load a report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "prefill",
        lambda whole: PrefillReport(
            **shared.header(whole), measurements=[_measurement(m) for m in whole["measurements"]]
        ),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> PrefillMeasurement:
    memory = [MemoryUse(**device) for device in record["memory"]]
    return PrefillMeasurement(**record | {"stats": shared.read_stats(record["stats"]), "memory": memory})


def as_csv(report: PrefillReport) -> str:
    """Format the table as CSV, a line per cell: speeds in tokens/s, prompt sizes in tokens, and memory in bytes."""
    spreads = ("prefill", "prefill_ratio", "decode", "decode_ratio")
    return shared.as_csv([shared.flatten(asdict(cell), spreads) for cell in report.cells()])


def tables(report: PrefillReport) -> list[TextTable]:
    """Build two tables, of the prefill and of the generation after it; an empty list without measurements."""
    cells, settings = report.cells(), report.settings
    if not cells:
        return []
    keys = [(format_size(cell.size), cell.mode, str(cell.depth or "-")) for cell in cells]
    prefill_rows = [
        (
            *key,
            *format_spread(cell.prefill),
            *format_spread(cell.prefill_ratio),
            f"{cell.first_token_seconds:.2f}",
            f"{cell.elapsed_seconds:.1f}",
            *map(_bytes, (cell.host_peak_bytes, cell.host_grown_bytes, cell.device_bytes)),
        )
        for key, cell in zip(keys, cells, strict=True)
    ]
    decode_rows = [
        (
            *key,
            *format_spread(cell.decode),
            *format_spread(cell.decode_ratio),
            "-" if cell.acceptance_rate is None else f"{cell.acceptance_rate:.0%}",
            "-" if cell.mean_accepted_length is None else f"{cell.mean_accepted_length:.2f}",
        )
        for key, cell in zip(keys, cells, strict=True)
    ]
    first = ("prompt", "mode", "drafts", "tokens/s", "spread", "of none", "spread")
    return [
        TextTable(
            f"Prefill: {settings['model']}, {describe_settings(settings)}",
            (*first, "first token, s", "elapsed, s", "host", "grown", "device"),
            prefill_rows,
        ),
        TextTable(
            f"Code output: {settings['gen']} tokens after each prompt"
            + (", synthetic acceptance" if settings["synthetic"] is not None else ""),
            (*first, "accepted", "tokens per round"),
            decode_rows,
        ),
    ]


def _bytes(n: int | None) -> str:
    if n is None:
        return "-"
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"


def _notes(report: PrefillReport) -> list[str]:
    """Return the notes to print below the tables: missing measurements, explanations, source of prompts, machine."""
    left_out = [f"left out: {line}" for line in report.left_out]
    rates = report.settings["synthetic"]
    return [
        *left_out,
        *([] if rates is None else [shared.synthetic_note(rates)]),
        f"{shared.SPREAD}. {EXPLAINED}",
        f"prompts: {report.settings['prompt']}",
        *shared.describe_environment(report),
    ]


def as_markdown(report: PrefillReport) -> str:
    """Format both tables as Markdown."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: PrefillReport) -> Stack:
    """Format both tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def describe_start(group: PrefillGroup, mode: str) -> str:
    """Describe a measurement that is about to start, for the progress bar."""
    drafts = "" if mode == NONE else f", {group.depth} drafts"
    return f"{format_size(group.size)} {mode}{drafts}"


def describe_result(m: PrefillMeasurement) -> str:
    """Describe a finished measurement in one line."""
    drafts = "" if m.mode == NONE else f", {m.depth} drafts, {m.stats.acceptance_rate:.0%} accepted"
    return (
        f"round {m.round + 1}: {format_size(m.size)} {m.mode}{drafts}: "
        f"prefill {m.stats.prefill_tokens_per_second:.1f}/s, decode {m.stats.decode_tokens_per_second:.1f}/s"
    )
