"""Plot of a rows bench: times of verifications and draft chains relative to one row, and times by operation."""

from __future__ import annotations

from pathlib import Path

from pymtp.bench.plot import error_bar_line, saved_figure
from pymtp.bench.rows import DRAFT, ROWS
from pymtp.bench.rows_report import OUTSIDE, RowsReport

MAX_NAMED = 6  # operations that have their own bar; all others share one


def plot(report: RowsReport, path: Path) -> None:
    """Draw two panels: times of verifications and draft chains, and times of the operations of verifications."""
    cells = report.cells()
    rows = [cell for cell in cells if cell.what == ROWS]
    with saved_figure(path, 1, 2, figsize=(10, 4)) as panels:
        for kind, style in ((ROWS, "C0"), (DRAFT, "C1")):
            points = [(cell.n, cell.ratio) for cell in cells if cell.what == kind and cell.ratio]
            if points:
                error_bar_line(
                    panels[0][0], [n for n, _ in points], [ratio for _, ratio in points], label=kind, color=style
                )
        panels[0][0].set(xlabel="rows, or drafts of a chain", ylabel="time, of one row", ylim=(0, None))
        panels[0][0].set_xscale("log", base=2)
        panels[0][0].legend(fontsize="small")
        names = sorted({n for cell in rows for n in cell.operations}, key=lambda n: -rows[-1].operations.get(n, 0.0))
        below = [0.0] * len(rows)
        for name in [*names[:MAX_NAMED], "others", OUTSIDE]:
            parts = {cell.n: cell.operations | {OUTSIDE: cell.outside} for cell in rows}
            rest = names[MAX_NAMED:] if name == "others" else [name]
            heights = [1e3 * sum(parts[cell.n].get(n, 0.0) for n in rest) for cell in rows]
            panels[0][1].bar([str(cell.n) for cell in rows], heights, bottom=below, label=name)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        panels[0][1].set(xlabel="rows", ylabel="ms")
        panels[0][1].legend(fontsize="small")
