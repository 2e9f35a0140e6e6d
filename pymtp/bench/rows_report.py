"""Report of a rows bench: times relative to one row, times by operation, and share of the memory's speed."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from pymtp.bench.paired import Group
from pymtp.bench.plot import error_bar_line, saved_figure
from pymtp.bench.report import Report, describe_settings, group_by
from pymtp.bench.rows import DRAFT, ROWS, MemoryReads, RowsMeasurement, describe
from pymtp.bench.table import SPREAD, Cell, Column, Spread, Table, format_spread
from pymtp.context.inspect import Operation

SMALL = 0.01  # operations with a smaller share of the time in all cells are summed up as "others"
OUTSIDE = "outside the graph"
# CPU features that make matrix products faster
INSTRUCTIONS = re.compile("AVX2|AVX512|AVX_|AMX|NEON|DOTPROD|MATMUL|SVE|SME")
MAX_BARS = 6  # operations that have their own bar in the plot; all others share one


@dataclass(frozen=True)
class RowsReport(Report):
    """All measurements of a rows bench.

    A cell is a verification of n rows, or a chain of n drafts. Its seconds are those of a decode, over the medians of
    the bench rounds; ratio is relative to a verification of one row in the same bench round; observed is the factor by
    which timing each operation made the decode slower. All other figures are median seconds of a decode: by operation,
    outside of all operations, waiting for other threads within them, and of all matrix products, which read
    weight_bytes bytes of weights.

    reads: timed reads of memory, for each bench round.
    """

    measurements: list[RowsMeasurement]
    reads: list[MemoryReads]

    bench = "rows"
    explained = (
        "of one row: time relative to a verification of one row in the same round. By operation: time of each "
        "operation in decodes that were timed node by node, with the wait for other threads; the time of nodes that "
        "are computed together is counted at the first of them. outside: time to build graphs, to launch and to copy, "
        "and all work that is not on the CPU. waiting: time within the operations in which the first thread waited for "
        "other threads."
    )

    def cells(self) -> list[Cell]:
        """Return the cells of verifications sorted by rows, then those of chains sorted by drafts."""
        one_row = {m.round: statistics.median(m.seconds) for m in self.measurements if (m.what, m.n) == (ROWS, 1)}
        by_cell = group_by(self.measurements, lambda m: (m.what, m.n), lambda key: (key[0] != ROWS, key[1]))
        return [_cell(*key, own, one_row) for key, own in by_cell.items()]

    def memory_speed(self) -> Spread | None:
        """Return the speed of the timed reads of memory in bytes/s; None if there was none."""
        return Spread.of([self.settings["memory"] / s for reads in self.reads for s in reads.seconds])

    def memory_share(self) -> float | None:
        """Return how fast a verification of one row reads its weights, as a share of memory_speed; None if unknown."""
        speed, cells = self.memory_speed(), self.cells()
        if speed is None or not cells or not cells[0].seconds or not cells[0].weight_bytes:
            return None
        share: float = cells[0].weight_bytes / cells[0].seconds.median / speed.median
        return share

    def computed(self) -> dict[str, Any]:
        """Return the cells, and the speed of the memory."""
        memory = {"memory_bytes_per_second": self.memory_speed(), "memory_share": self.memory_share()}
        return {**super().computed(), **memory}

    def csv_lines(self) -> list[dict[str, Any]]:
        """Return, for each cell, a line for the whole decode and a line for each operation, in seconds."""
        return [
            {"what": cell.what, "n": cell.n, "operation": operation, "seconds": seconds}
            for cell in self.cells()
            for operation, seconds in {"whole": cell.seconds and cell.seconds.median, **_parts(cell)}.items()
        ]

    def tables(self) -> list[Table]:
        """Build the tables: times, operations, memory and the processor; an empty list without measurements."""
        cells, settings = self.cells(), self.settings
        if not cells:
            return []
        times = [
            Column("", "what"),
            Column("n", "n"),
            Column("ms", lambda c: _milliseconds(c.seconds), SPREAD),
            Column("of one row", "ratio", SPREAD),
            Column("each, of one row", lambda c: c.ratio and c.ratio.median / c.n, ".3f"),
        ]
        title = f"{settings['model']}, {describe_settings(settings)}, after {settings.get('prompt_tokens', 64)} tokens"
        tables = [Table(f"A verification of some rows, a chain of some drafts: {title}", times, cells)]
        if any(cell.operations for cell in cells):
            tables.append(_by_operation(cells))
        return [*tables, *self._memory(cells[0]), self._by_processor(cells)]

    def findings(self) -> list[str]:
        """Return the note about the cost of timing each operation."""
        slowdowns = [cell.observed for cell in self.cells()]
        if not slowdowns:
            return []
        times = f"{min(slowdowns):.2f} to {max(slowdowns):.2f} times"
        return [f"timing each operation made decodes take {times} as long"]

    def plot(self, path: Path) -> None:
        """Draw two panels: times of verifications and draft chains, and times of the operations of verifications."""
        cells = self.cells()
        rows = [cell for cell in cells if cell.what == ROWS]
        with saved_figure(path, 1, 2, figsize=(10, 4)) as panels:
            left, right = panels[0]
            for kind, style in ((ROWS, "C0"), (DRAFT, "C1")):
                points = [(cell.n, cell.ratio) for cell in cells if cell.what == kind]
                error_bar_line(left, points, label=kind, color=style)
            left.set(xlabel="rows, or drafts of a chain", ylabel="time, of one row", ylim=(0, None))
            left.set_xscale("log", base=2)
            left.legend(fontsize="small")
            found = {n for cell in rows for n in cell.operations}
            names = sorted(found, key=lambda n: -rows[-1].operations.get(n, 0.0))
            bars = {name: [name] for name in names[:MAX_BARS]} | {"others": names[MAX_BARS:], OUTSIDE: [OUTSIDE]}
            below = [0.0] * len(rows)
            for name, operations in bars.items():
                heights = [1e3 * sum(_parts(cell).get(n, 0.0) for n in operations) for cell in rows]
                right.bar([str(cell.n) for cell in rows], heights, bottom=below, label=name)
                below = [a + b for a, b in zip(below, heights, strict=True)]
            right.set(xlabel="rows", ylabel="ms")
            right.legend(fontsize="small")

    def _memory(self, one_row: Cell) -> list[Table]:
        speed = self.memory_speed()
        if speed is None or one_row.seconds is None:
            return []
        rows = [("a read of memory", self.settings["memory"], speed.median)]
        if n_bytes := one_row.weight_bytes:
            rows.append(("one row, weights of products", n_bytes, n_bytes / one_row.seconds.median))
            rows.append(("its products alone", n_bytes, n_bytes / one_row.product_seconds))
        columns = [
            Column("", lambda row: ""),
            Column("", itemgetter(0)),
            Column("MB", lambda row: row[1] / 1e6, ",.1f"),
            Column("GB/s", lambda row: row[2] / 1e9, ".1f"),
            Column("of the read", lambda row: row[2] / speed.median, ".2f"),
        ]
        return [Table("Memory", columns, rows)]

    def _by_processor(self, cells: list[Cell]) -> Table:
        """Build a table with one line about the processor, to be joined with those of other machines."""
        shown = [cell for cell in cells[1:] if cell.n in (2, 4, 8) or (cell.what, cell.n) == (DRAFT, 1)]
        columns = [
            Column("processor", lambda report: report.machine["cpu"]),
            Column("instructions", lambda report: " ".join(filter(INSTRUCTIONS.match, report.build["cpu_features"]))),
            Column("threads", lambda report: report.settings["threads"]),
            Column("one row, ms", lambda report: format_spread(_milliseconds(cells[0].seconds))[0]),
            *(
                Column(describe(cell.what, cell.n), lambda report, cell=cell: cell.ratio and cell.ratio.median, ".2f")  # type: ignore[misc]
                for cell in shown
            ),
            Column("memory's speed", lambda report: report.memory_share(), ".2f"),
        ]
        return Table("By processor, of one row", columns, [self])

    @staticmethod
    def describe_start(group: Group, arm: str) -> str:
        """Describe a measurement that is about to start, for the progress bar."""
        return arm

    @staticmethod
    def describe_result(m: RowsMeasurement) -> str:
        """Describe a finished measurement in one line."""
        return f"round {m.round + 1}: {describe(m.what, m.n)}: {1e3 * statistics.median(m.seconds):.3f} ms"


def _cell(what: str, n: int, measurements: Sequence[RowsMeasurement], one_row: dict[int, float]) -> Cell:
    medians = [statistics.median(m.seconds) for m in measurements]
    observed = [statistics.median(m.observed_seconds) for m in measurements]
    by_name = [{_operation_name(o): o.seconds for o in m.operations} for m in measurements]
    products = [[o for o in m.operations if o.weight_bytes] for m in measurements]
    ratios = [s / one_row[m.round] for s, m in zip(medians, measurements, strict=True) if m.round in one_row]
    return Cell(
        what=what,
        n=n,
        seconds=Spread.of(medians),
        ratio=Spread.of(ratios),
        observed=statistics.median(o / s for o, s in zip(observed, medians, strict=True)),
        operations={
            name: statistics.median(times.get(name, 0.0) for times in by_name)
            for name in sorted({name for times in by_name for name in times})
        },
        outside=statistics.median(m.outside_seconds for m in measurements),
        waiting=statistics.median(sum(o.waiting_seconds for o in m.operations) for m in measurements),
        weight_bytes=max(sum(o.weight_bytes for o in operations) for operations in products),
        product_seconds=statistics.median(sum(o.seconds for o in operations) for operations in products),
    )


def _operation_name(operation: Operation) -> str:
    """Return the name of an operation, followed by the type of its weights if it has weights."""
    return f"{operation.op} {operation.weights}".strip()


def _parts(cell: Cell) -> dict[str, float]:
    return {**cell.operations, OUTSIDE: cell.outside}


def _milliseconds(spread: Spread | None) -> Spread | None:
    return spread and Spread.of([1e3 * value for value in (spread.low, spread.median, spread.high)])


def _by_operation(cells: list[Cell]) -> Table:
    totals = [sum(_parts(cell).values()) for cell in cells]
    shares = {
        name: max(cell.operations.get(name, 0.0) / total for cell, total in zip(cells, totals, strict=True))
        for name in sorted({name for cell in cells for name in cell.operations})
    }
    shown = sorted((name for name, share in shares.items() if share >= SMALL), key=lambda name: -shares[name])
    others = [sum(s for name, s in cell.operations.items() if name not in shown) for cell in cells]
    rows: list[tuple[str, str, list[float]]] = [
        *(("graph", name, [cell.operations.get(name, 0.0) for cell in cells]) for name in shown),
        ("graph", "others", others),
        ("outside", "", [cell.outside for cell in cells]),
        ("whole", "", totals),
        ("waiting", "", [cell.waiting for cell in cells]),
    ]
    times = [
        Column(describe(cell.what, cell.n), lambda row, i=i: 1e3 * row[2][i], ".3f")  # type: ignore[misc]
        for i, cell in enumerate(cells)
    ]
    return Table("By operation, ms", [Column("", itemgetter(0)), Column("operation", itemgetter(1)), *times], rows)
