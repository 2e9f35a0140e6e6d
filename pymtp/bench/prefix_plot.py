"""Plot of a prefix bench: prefilled tokens and time to the first token, each relative to an LLM without a cache."""

from __future__ import annotations

from pathlib import Path

from pymtp.bench.plot import saved_figure
from pymtp.bench.prefix_report import PrefixReport
from pymtp.bench.report import Spread


def plot(report: PrefixReport, path: Path) -> None:
    """Draw a left panel with the prefilled and the new tokens of each trace, and a right panel with its times."""
    cells = report.cells()
    traces = [cell.trace for cell in cells]
    with saved_figure(path, 1, 2, figsize=(10, 4)) as panels:
        left, right = panels[0]
        left.barh(traces, [_median(cell.read) / cell.prompt for cell in cells], label="read")
        left.barh(traces, [cell.unseen / cell.prompt for cell in cells], height=0.4, label="new")
        left.set(xlabel="tokens, of all", xlim=(0, 1))
        right.barh(traces, [_median(cell.of_all) for cell in cells], color="C2")
        right.axvline(1, color="0.6", linewidth=1)
        right.set(xlabel="seconds to first tokens, of those without cache")
        for panel in (left, right):
            panel.invert_yaxis()
        left.legend(fontsize="small")


def _median(spread: Spread | None) -> float:
    return spread.median if spread else 0.0
