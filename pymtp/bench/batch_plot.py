"""Speed of all requests together over their number, a line for each depth; below, the gaps between pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pymtp.bench.batch import ARMS
from pymtp.bench.batch_report import Cell, Report, described
from pymtp.bench.plot import drawn_to, line


def plot(report: Report, path: Path) -> None:
    """A column for each acceptance."""
    cells = report.cells()
    columns = [a for a in report.settings["acceptance"] if any(cell.acceptance == a for cell in cells)]
    size = (1 + 4.5 * len(columns), 5.8)
    with drawn_to(path, 2, len(columns), sharey="row", figsize=size, gridspec_kw={"height_ratios": (3, 2)}) as panels:
        for i, acceptance in enumerate(columns):
            here = [cell for cell in cells if cell.acceptance == acceptance]
            _speeds(panels[0][i], here)
            _gaps(panels[1][i], here)
            panels[0][i].set_title(described(acceptance))
        panels[0][0].set(ylabel="all requests, tokens/s", ylim=(0, None))
        panels[0][0].legend(fontsize="small", title="drafts")
        panels[1][0].set(ylabel="gap, 99th of 100, ms", ylim=(0, None))


def _speeds(axes: Any, cells: list[Cell]) -> None:
    for i, arm in enumerate(ARMS):
        shown = [(cell.n, cell.speed) for cell in cells if cell.arm == arm and cell.speed]
        if shown:
            line(axes, [x for x, _ in shown], [y for _, y in shown], label=arm, color=f"C{i}")
    _over_n(axes, cells)


def _gaps(axes: Any, cells: list[Cell]) -> None:
    for i, arm in enumerate(ARMS):
        shown = [(cell.n, 1e3 * cell.gaps.p99) for cell in cells if cell.arm == arm and cell.gaps]
        axes.plot([x for x, _ in shown], [y for _, y in shown], marker="o", markersize=4, color=f"C{i}")
    _over_n(axes, cells)


def _over_n(axes: Any, cells: list[Cell]) -> None:
    ticks = sorted({cell.n for cell in cells})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.set_xlabel("sequences")
