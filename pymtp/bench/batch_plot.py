"""Plot of a batch bench: total tokens/s, and the gaps between pieces of a request, over the number of sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pymtp.bench.batch import ARMS
from pymtp.bench.batch_report import BatchCell, BatchReport, describe_acceptance
from pymtp.bench.plot import error_bar_line, saved_figure


def plot(report: BatchReport, path: Path) -> None:
    """Draw a column of two panels for each acceptance, with a line for each number of drafts."""
    cells = report.cells()
    columns = [a for a in report.settings["acceptance"] if any(cell.acceptance == a for cell in cells)]
    size = (1 + 4.5 * len(columns), 5.8)
    with saved_figure(
        path, 2, len(columns), sharey="row", figsize=size, gridspec_kw={"height_ratios": (3, 2)}
    ) as panels:
        for i, acceptance in enumerate(columns):
            column = [cell for cell in cells if cell.acceptance == acceptance]
            _speeds(panels[0][i], column)
            _gaps(panels[1][i], column)
            panels[0][i].set_title(describe_acceptance(acceptance))
        panels[0][0].set(ylabel="all requests, tokens/s", ylim=(0, None))
        panels[0][0].legend(fontsize="small", title="drafts")
        panels[1][0].set(ylabel="gap, 99th of 100, ms", ylim=(0, None))


def _speeds(axes: Any, cells: list[BatchCell]) -> None:
    for i, arm in enumerate(ARMS):
        points = [(cell.n, cell.speed) for cell in cells if cell.arm == arm and cell.speed]
        if points:
            error_bar_line(axes, [x for x, _ in points], [y for _, y in points], label=arm, color=f"C{i}")
    _over_n(axes, cells)


def _gaps(axes: Any, cells: list[BatchCell]) -> None:
    for i, arm in enumerate(ARMS):
        points = [(cell.n, 1e3 * cell.gaps.p99) for cell in cells if cell.arm == arm and cell.gaps]
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=4, color=f"C{i}")
    _over_n(axes, cells)


def _over_n(axes: Any, cells: list[BatchCell]) -> None:
    ticks = sorted({cell.n for cell in cells})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.set_xlabel("sequences")
