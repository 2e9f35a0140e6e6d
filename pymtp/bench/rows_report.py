"""Report of a rows bench: times relative to one row, times by operation, and share of the memory's speed.

The report is printed as tables, Markdown, CSV and JSON, and loaded from JSON.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.report import Record, Spread, TextTable, describe_settings, format_spread
from pymtp.bench.rows import DRAFT, ROWS, MemoryReads, RowsMeasurement
from pymtp.context.inspect import Operation

SMALL = 0.01  # operations with a smaller share of the time in all cells are summed up as "others"
OUTSIDE = "outside the graph"
# CPU features that make matrix products faster
INSTRUCTIONS = re.compile("AVX2|AVX512|AVX_|AMX|NEON|DOTPROD|MATMUL|SVE|SME")
EXPLAINED = (
    "of one row: time relative to a verification of one row in the same round. By operation: time of each operation in "
    "decodes that were timed node by node, with the wait for other threads; the time of nodes that are computed "
    "together is counted at the first of them. outside: time to build graphs, to launch and to copy, and all work that "
    "is not on the CPU. waiting: time within the operations in which the first thread waited for other threads."
)


@dataclass(frozen=True)
class RowsCell:
    """All measurements of a verification of n rows, or of a chain of n drafts.

    what: ROWS for a verification, or DRAFT for a chain.
    seconds: spread of the time of a decode, over the medians of the bench rounds.
    ratio: time of a decode relative to a verification of one row in the same bench round.
    observed: factor by which timing each operation made the decode slower.
    operations: median seconds of each operation, by its name.
    outside: median seconds of a decode outside of all operations.
    waiting: median seconds within the operations in which the first thread waited for other threads.
    weight_bytes: bytes of weights that the matrix products of a decode read.
    product_seconds: median seconds of all matrix products of a decode.
    """

    what: str
    n: int
    seconds: Spread | None
    ratio: Spread | None
    observed: float
    operations: dict[str, float]
    outside: float
    waiting: float
    weight_bytes: int
    product_seconds: float


@dataclass(frozen=True)
class RowsReport(Record[RowsMeasurement]):
    """All measurements of a rows bench, and their summary in cells.

    reads: timed reads of memory, for each bench round.
    """

    reads: list[MemoryReads]

    def cells(self) -> list[RowsCell]:
        """Return the cells of verifications sorted by rows, then those of chains sorted by drafts."""
        keys = sorted({(m.what, m.n) for m in self.measurements}, key=lambda key: (key[0] != ROWS, key[1]))
        one_row = {m.round: statistics.median(m.seconds) for m in self.measurements if (m.what, m.n) == (ROWS, 1)}
        return [_cell([m for m in self.measurements if (m.what, m.n) == key], one_row) for key in keys]

    def memory_speed(self) -> Spread | None:
        """Return the speed of the timed reads of memory in bytes/s; None if there was none."""
        return Spread.of([self.settings["memory"] / s for reads in self.reads for s in reads.seconds])

    def memory_share(self) -> float | None:
        """Return how fast a verification of one row reads its weights, as a share of memory_speed; None if unknown."""
        speed, cells = self.memory_speed(), self.cells()
        if speed is None or not cells or not cells[0].seconds or not cells[0].weight_bytes:
            return None
        return cells[0].weight_bytes / cells[0].seconds.median / speed.median


def operation_name(operation: Operation) -> str:
    """Return the name of an operation, followed by the type of its weights if it has weights."""
    return f"{operation.op} {operation.weights}".strip()


def _cell(measurements: list[RowsMeasurement], one_row: dict[int, float]) -> RowsCell:
    medians = [statistics.median(m.seconds) for m in measurements]
    observed = [statistics.median(m.observed_seconds) for m in measurements]
    names = {operation_name(o) for m in measurements for o in m.operations}
    by_name = [{operation_name(o): o.seconds for o in m.operations} for m in measurements]
    products = [[o for o in m.operations if o.weight_bytes] for m in measurements]
    return RowsCell(
        measurements[0].what,
        measurements[0].n,
        seconds=Spread.of(medians),
        ratio=Spread.of(
            [s / one_row[m.round] for s, m in zip(medians, measurements, strict=True) if m.round in one_row]
        ),
        observed=statistics.median(o / s for o, s in zip(observed, medians, strict=True)),
        operations={n: statistics.median(times.get(n, 0.0) for times in by_name) for n in sorted(names)},
        outside=statistics.median(m.outside_seconds for m in measurements),
        waiting=statistics.median(sum(o.waiting_seconds for o in m.operations) for m in measurements),
        weight_bytes=max(sum(o.weight_bytes for o in operations) for operations in products),
        product_seconds=statistics.median(sum(o.seconds for o in operations) for operations in products),
    )


def as_json(report: RowsReport) -> str:
    """Format all measurements, their cells, the settings and the environment as JSON, for `load`."""
    return shared.as_json(
        "rows",
        report,
        cells=[asdict(cell) for cell in report.cells()],
        memory_bytes_per_second=asdict(speed) if (speed := report.memory_speed()) else None,
        memory_share=report.memory_share(),
    )


def load(path: Path) -> RowsReport:
    """Load a report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "rows",
        lambda whole: RowsReport(
            **shared.header(whole),
            measurements=[_measurement(m) for m in whole["measurements"]],
            reads=[MemoryReads(**reads) for reads in whole["reads"]],
        ),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> RowsMeasurement:
    return RowsMeasurement(**record | {"operations": [Operation(**o) for o in record["operations"]]})


def as_csv(report: RowsReport) -> str:
    """Format times in seconds as CSV: for each cell, a line for the whole decode and a line for each operation."""
    return shared.as_csv(
        [
            {"what": cell.what, "n": cell.n, "operation": operation, "seconds": seconds}
            for cell in report.cells()
            for operation, seconds in {"whole": cell.seconds and cell.seconds.median, **_parts(cell)}.items()
        ]
    )


def _parts(cell: RowsCell) -> dict[str, float]:
    return cell.operations | {OUTSIDE: cell.outside}


def tables(report: RowsReport) -> Iterator[TextTable]:
    """Build the tables: times, operations, memory and the processor. Yield nothing if there are no measurements."""
    cells, settings = report.cells(), report.settings
    if not cells:
        return
    title = f"{settings['model']}, {describe_settings(settings)}"
    yield TextTable(
        f"A verification of some rows, a chain of some drafts: {title}",
        ("", "n", "ms", "spread", "of one row", "spread", "each, of one row"),
        [
            (
                cell.what,
                str(cell.n),
                *format_spread(_milliseconds(cell.seconds)),
                *format_spread(cell.ratio),
                f"{cell.ratio.median / cell.n:.3f}" if cell.ratio else "-",
            )
            for cell in cells
        ],
    )
    if any(cell.operations for cell in cells):
        yield _by_operation(cells)
    yield from _memory(report, cells)
    yield _by_processor(report, cells)


def _milliseconds(spread: Spread | None) -> Spread | None:
    return spread and Spread.of([1e3 * value for value in (spread.low, spread.median, spread.high)])


def _by_operation(cells: list[RowsCell]) -> TextTable:
    totals = [sum(_parts(cell).values()) for cell in cells]
    names = sorted({n for cell in cells for n in cell.operations})
    shares = {
        n: [cell.operations.get(n, 0.0) / total for cell, total in zip(cells, totals, strict=True)] for n in names
    }
    shown = sorted((n for n in names if max(shares[n]) >= SMALL), key=lambda n: -max(shares[n]))

    def line(place: str, operation: str, seconds: list[float]) -> tuple[str, ...]:
        return place, operation, *(f"{1e3 * s:.3f}" for s in seconds)

    others = [sum(s for n, s in cell.operations.items() if n not in shown) for cell in cells]
    return TextTable(
        "By operation, ms",
        ("", "operation", *(_heading(cell) for cell in cells)),
        [
            *(line("graph", n, [cell.operations.get(n, 0.0) for cell in cells]) for n in shown),
            line("graph", "others", others),
            line("outside", "", [cell.outside for cell in cells]),
            line("whole", "", totals),
            line("waiting", "", [cell.waiting for cell in cells]),
        ],
    )


def _heading(cell: RowsCell) -> str:
    return describe_start(cell.what, cell.n)


def _memory(report: RowsReport, cells: list[RowsCell]) -> Iterator[TextTable]:
    speed, one_row = report.memory_speed(), cells[0]
    if speed is None or one_row.seconds is None:
        return

    def line(title: str, n_bytes: float, rate: float) -> tuple[str, ...]:
        return "", title, f"{n_bytes / 1e6:,.1f}", f"{rate / 1e9:.1f}", f"{rate / speed.median:.2f}"

    rows = [line("a read of memory", report.settings["memory"], speed.median)]
    if one_row.weight_bytes:
        rows.append(
            line("one row, weights of products", one_row.weight_bytes, one_row.weight_bytes / one_row.seconds.median)
        )
        rows.append(line("its products alone", one_row.weight_bytes, one_row.weight_bytes / one_row.product_seconds))
    yield TextTable("Memory", ("", "", "MB", "GB/s", "of the read"), rows)


def _by_processor(report: RowsReport, cells: list[RowsCell]) -> TextTable:
    """Build a table with one line about the processor, to be joined with those of other machines."""
    share = report.memory_share()
    shown_cells = [cell for cell in cells[1:] if cell.n in (2, 4, 8) or (cell.what, cell.n) == (DRAFT, 1)]
    return TextTable(
        "By processor, of one row",
        (
            "processor",
            "instructions",
            "threads",
            "one row, ms",
            *map(_heading, shown_cells),
            "memory's speed",
        ),
        [
            (
                report.machine["cpu"],
                " ".join(filter(INSTRUCTIONS.match, report.build["cpu_features"])),
                str(report.settings["threads"]),
                format_spread(_milliseconds(cells[0].seconds))[0],
                *(f"{cell.ratio.median:.2f}" if cell.ratio else "-" for cell in shown_cells),
                "-" if share is None else f"{share:.2f}",
            )
        ],
    )


def _notes(report: RowsReport) -> list[str]:
    """Return the notes to print below the tables: missing measurements, explanations, environment."""
    slowdowns = [cell.observed for cell in report.cells()]
    timing = (
        [f"timing each operation made decodes take {min(slowdowns):.2f} to {max(slowdowns):.2f} times as long"]
        if slowdowns
        else []
    )
    notes = [f"left out: {line}" for line in report.left_out]
    return [*notes, f"{shared.SPREAD}. {EXPLAINED}", *timing, *shared.describe_environment(report)]


def as_markdown(report: RowsReport) -> str:
    """Format all tables as Markdown."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: RowsReport) -> Stack:
    """Format all tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def describe_start(kind: str, n: int) -> str:
    """Describe a measurement, for the progress bar and the headings of tables: "1 row", "3 drafts"."""
    return f"{n} {kind.removesuffix('s')}{'s' if n > 1 else ''}"


def describe_result(m: RowsMeasurement) -> str:
    """Describe a finished measurement in one line."""
    return f"round {m.round + 1}: {describe_start(m.what, m.n)}: {1e3 * statistics.median(m.seconds):.3f} ms"
