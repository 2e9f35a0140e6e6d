"""What a rows bench came to: times against one row, time by operation, share of the memory's speed.

As tables, Markdown, CSV and JSON, and back from JSON."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.report import Lines, Record, Spread, figures, run_with
from pymtp.bench.rows import DRAFT, ROWS, Measurement, Reads
from pymtp.context.inspect import Operation

SMALL = 0.01  # operations below this share everywhere are shown as one
OUTSIDE = "outside the graph"
INSTRUCTIONS = re.compile("AVX2|AVX512|AVX_|AMX|NEON|DOTPROD|MATMUL|SVE|SME")  # those that products differ by
EXPLAINED = (
    "of one row: ratio to one row of the same round. By operation: of launches that were timed node by node, with the "
    "wait for other threads; what is computed together counts for its first node. outside: building graphs, launching, "
    "copying, and all that is not on the CPU. waiting: of the first thread, within the operations."
)


@dataclass(frozen=True)
class Cell:
    """All launches of n rows, or of a chain of n steps.

    seconds: the rounds' medians. ratio: to one row, round by round. observed: what it takes more while it is timed by
    operation, as a ratio. operations: median seconds by name. outside, waiting: seconds, see EXPLAINED.
    weight_bytes: read by products. product_seconds: of these.
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
class Report(Record[Measurement]):
    """A run. reads: of memory."""

    reads: list[Reads]

    def cells(self) -> list[Cell]:
        """Rows, then chains, in order."""
        keys = sorted({(m.what, m.n) for m in self.measurements}, key=lambda key: (key[0] != ROWS, key[1]))
        one = {m.round: statistics.median(m.seconds) for m in self.measurements if (m.what, m.n) == (ROWS, 1)}
        return [_cell([m for m in self.measurements if (m.what, m.n) == key], one) for key in keys]

    def memory_speed(self) -> Spread | None:
        """Bytes a second that reading memory reaches."""
        return Spread.of([self.settings["memory"] / s for reads in self.reads for s in reads.seconds])

    def share(self) -> float | None:
        """Of the memory's speed, what one row reaches with the weights it reads; None where either is not known."""
        speed, cells = self.memory_speed(), self.cells()
        if speed is None or not cells or not cells[0].seconds or not cells[0].weight_bytes:
            return None
        return cells[0].weight_bytes / cells[0].seconds.median / speed.median


def name(operation: Operation) -> str:
    """The operation, with the type of the weights."""
    return f"{operation.op} {operation.weights}".strip()


def _cell(measurements: list[Measurement], one: dict[int, float]) -> Cell:
    medians = [statistics.median(m.seconds) for m in measurements]
    observed = [statistics.median(m.observed_seconds) for m in measurements]
    names = {name(o) for m in measurements for o in m.operations}
    by_name = [{name(o): o.seconds for o in m.operations} for m in measurements]
    products = [[o for o in m.operations if o.weight_bytes] for m in measurements]
    return Cell(
        measurements[0].what,
        measurements[0].n,
        seconds=Spread.of(medians),
        ratio=Spread.of([s / one[m.round] for s, m in zip(medians, measurements, strict=True) if m.round in one]),
        observed=statistics.median(o / s for o, s in zip(observed, medians, strict=True)),
        operations={n: statistics.median(times.get(n, 0.0) for times in by_name) for n in sorted(names)},
        outside=statistics.median(m.outside_seconds for m in measurements),
        waiting=statistics.median(sum(o.waiting_seconds for o in m.operations) for m in measurements),
        weight_bytes=max(sum(o.weight_bytes for o in found) for found in products),
        product_seconds=statistics.median(sum(o.seconds for o in found) for found in products),
    )


def as_json(report: Report) -> str:
    """Every measurement, the cells made of them, and what they were made with and on. `load` reads it."""
    return shared.as_json(
        "rows",
        report,
        cells=[asdict(cell) for cell in report.cells()],
        memory_bytes_per_second=asdict(speed) if (speed := report.memory_speed()) else None,
        memory_share=report.share(),
    )


def load(path: Path) -> Report:
    """A report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "rows",
        lambda whole: Report(
            **shared.header(whole),
            measurements=[_measurement(m) for m in whole["measurements"]],
            reads=[Reads(**reads) for reads in whole["reads"]],
        ),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> Measurement:
    return Measurement(**record | {"operations": [Operation(**o) for o in record["operations"]]})


def as_csv(report: Report) -> str:
    """A line for each number of rows or steps and each operation, in seconds."""
    return shared.as_csv(
        [
            {"what": cell.what, "n": cell.n, "operation": operation, "seconds": seconds}
            for cell in report.cells()
            for operation, seconds in {"whole": cell.seconds and cell.seconds.median, **_parts(cell)}.items()
        ]
    )


def _parts(cell: Cell) -> dict[str, float]:
    return cell.operations | {OUTSIDE: cell.outside}


def tables(report: Report) -> Iterator[Lines]:
    """What rows and steps take; by operation; the memory; a line for a table by processor. None of no measurements."""
    cells, settings = report.cells(), report.settings
    if not cells:
        return
    title = f"{settings['model']}, {run_with(settings)}"
    yield Lines(
        f"A verification of some rows, a chain of some drafts: {title}",
        ("", "n", "ms", "spread", "of one row", "spread", "each, of one row"),
        [
            (
                cell.what,
                str(cell.n),
                *figures(_milliseconds(cell.seconds)),
                *figures(cell.ratio),
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


def _by_operation(cells: list[Cell]) -> Lines:
    wholes = [sum(_parts(cell).values()) for cell in cells]
    names = sorted({n for cell in cells for n in cell.operations})
    shares = {
        n: [cell.operations.get(n, 0.0) / whole for cell, whole in zip(cells, wholes, strict=True)] for n in names
    }
    shown = sorted((n for n in names if max(shares[n]) >= SMALL), key=lambda n: -max(shares[n]))

    def line(where: str, what: str, seconds: list[float]) -> tuple[str, ...]:
        return where, what, *(f"{1e3 * s:.3f}" for s in seconds)

    others = [sum(s for n, s in cell.operations.items() if n not in shown) for cell in cells]
    return Lines(
        "By operation, ms",
        ("", "operation", *(_heading(cell) for cell in cells)),
        [
            *(line("graph", n, [cell.operations.get(n, 0.0) for cell in cells]) for n in shown),
            line("graph", "others", others),
            line("outside", "", [cell.outside for cell in cells]),
            line("whole", "", wholes),
            line("waiting", "", [cell.waiting for cell in cells]),
        ],
    )


def _heading(cell: Cell) -> str:
    return going_on(cell.what, cell.n)


def _memory(report: Report, cells: list[Cell]) -> Iterator[Lines]:
    speed, one = report.memory_speed(), cells[0]
    if speed is None or one.seconds is None:
        return

    def line(what: str, n_bytes: float, rate: float) -> tuple[str, ...]:
        return "", what, f"{n_bytes / 1e6:,.1f}", f"{rate / 1e9:.1f}", f"{rate / speed.median:.2f}"

    rows = [line("a read of memory", report.settings["memory"], speed.median)]
    if one.weight_bytes:
        rows.append(line("one row, weights of products", one.weight_bytes, one.weight_bytes / one.seconds.median))
        rows.append(line("its products alone", one.weight_bytes, one.weight_bytes / one.product_seconds))
    yield Lines("Memory", ("", "", "MB", "GB/s", "of the read"), rows)


def _by_processor(report: Report, cells: list[Cell]) -> Lines:
    """A line of a table by processor."""
    share = report.share()
    chosen = [cell for cell in cells[1:] if cell.n in (2, 4, 8) or (cell.what, cell.n) == (DRAFT, 1)]
    return Lines(
        "By processor, of one row",
        (
            "processor",
            "instructions",
            "threads",
            "one row, ms",
            *map(_heading, chosen),
            "memory's speed",
        ),
        [
            (
                report.machine["cpu"],
                " ".join(filter(INSTRUCTIONS.match, report.build["cpu_features"])),
                str(report.settings["threads"]),
                figures(_milliseconds(cells[0].seconds))[0],
                *(f"{cell.ratio.median:.2f}" if cell.ratio else "-" for cell in chosen),
                "-" if share is None else f"{share:.2f}",
            )
        ],
    )


def _notes(report: Report) -> list[str]:
    """What a reader of the tables must know."""
    cost = [cell.observed for cell in report.cells()]
    timing = [f"timing by operation made launches {min(cost):.2f} to {max(cost):.2f} times as long"] if cost else []
    notes = [f"left out: {line}" for line in report.left_out]
    return [*notes, f"{shared.SPREAD}. {EXPLAINED}", *timing, *shared.where_and_what(report)]


def as_markdown(report: Report) -> str:
    """All tables for a document."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: Report) -> Stack:
    """All tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def going_on(what: str, n: int) -> str:
    """What is measured now, in a few words."""
    return f"{n} {what.removesuffix('s')}{'s' if n > 1 else ''}"


def done(m: Measurement) -> str:
    """A line on one measurement."""
    return f"round {m.round + 1}: {going_on(m.what, m.n)}: {1e3 * statistics.median(m.seconds):.3f} ms"
