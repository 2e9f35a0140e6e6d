"""Time of a launch over its rows, against one row; and where it goes."""

from __future__ import annotations

from pathlib import Path

from pymtp.bench.plot import drawn_to, line
from pymtp.bench.rows import DRAFT, ROWS
from pymtp.bench.rows_report import OUTSIDE, Report

MOST = 6  # operations by name


def plot(report: Report, path: Path) -> None:
    """Left rows and chains, right the rows' operations."""
    cells = report.cells()
    rows = [cell for cell in cells if cell.what == ROWS]
    with drawn_to(path, 1, 2, figsize=(10, 4)) as panels:
        for what, style in ((ROWS, "C0"), (DRAFT, "C1")):
            shown = [(cell.n, cell.ratio) for cell in cells if cell.what == what and cell.ratio]
            if shown:
                line(panels[0][0], [n for n, _ in shown], [ratio for _, ratio in shown], label=what, color=style)
        panels[0][0].set(xlabel="rows, or drafts of a chain", ylabel="time, of one row", ylim=(0, None))
        panels[0][0].set_xscale("log", base=2)
        panels[0][0].legend(fontsize="small")
        names = sorted({n for cell in rows for n in cell.operations}, key=lambda n: -rows[-1].operations.get(n, 0.0))
        below = [0.0] * len(rows)
        for name in [*names[:MOST], "others", OUTSIDE]:
            parts = {cell.n: cell.operations | {OUTSIDE: cell.outside} for cell in rows}
            rest = names[MOST:] if name == "others" else [name]
            heights = [1e3 * sum(parts[cell.n].get(n, 0.0) for n in rest) for cell in rows]
            panels[0][1].bar([str(cell.n) for cell in rows], heights, bottom=below, label=name)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        panels[0][1].set(xlabel="rows", ylabel="ms")
        panels[0][1].legend(fontsize="small")
