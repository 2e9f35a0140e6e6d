"""Tokens read and seconds to the first token, each against no cache."""

from __future__ import annotations

from pathlib import Path

from pymtp.bench.plot import drawn_to
from pymtp.bench.prefix_report import Report
from pymtp.bench.report import Spread


def plot(report: Report, path: Path) -> None:
    """Left the tokens that were read and those that were new, right the seconds; both by trace."""
    cells = report.cells()
    names = [cell.trace for cell in cells]
    with drawn_to(path, 1, 2, figsize=(10, 4)) as panels:
        left, right = panels[0]
        left.barh(names, [_median(cell.read) / cell.prompt for cell in cells], label="read")
        left.barh(names, [cell.unseen / cell.prompt for cell in cells], height=0.4, label="new")
        left.set(xlabel="tokens, of all", xlim=(0, 1))
        right.barh(names, [_median(cell.of_all) for cell in cells], color="C2")
        right.axvline(1, color="0.6", linewidth=1)
        right.set(xlabel="seconds to first tokens, of those without cache")
        for panel in (left, right):
            panel.invert_yaxis()
        left.legend(fontsize="small")


def _median(spread: Spread | None) -> float:
    return spread.median if spread else 0.0
