"""Plot of a prefill bench: prefill tokens/s over prompt size, a line for each mode."""

from __future__ import annotations

from pathlib import Path

from pymtp.bench.plot import error_bar_line, saved_figure
from pymtp.bench.prefill import MODES, NONE, format_size
from pymtp.bench.prefill_report import PrefillReport


def plot(report: PrefillReport, path: Path) -> None:
    """Draw a panel for each number of drafts per round."""
    cells = report.cells()
    depths = sorted({cell.depth for cell in cells if cell.mode != NONE}) or [0]
    sizes = sorted({cell.size for cell in cells})
    with saved_figure(path, 1, len(depths), sharey=True, figsize=(1 + 4 * len(depths), 3.6)) as panels:
        for depth, axes in zip(depths, panels[0], strict=True):
            for i, mode in enumerate(MODES):
                points = [(c.size, c.prefill) for c in cells if c.mode == mode and c.depth in (0, depth) and c.prefill]
                if points:
                    error_bar_line(axes, [x for x, _ in points], [y for _, y in points], label=mode, color=f"C{i}")
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [format_size(size) for size in sizes], minor=False)
            axes.minorticks_off()
            axes.set_title(f"{depth} drafts per round" if depth else "no drafts")
            axes.set_xlabel("prompt, tokens")
        panels[0][0].set(ylabel="prefill, tokens/s", ylim=(0, None))
        panels[0][0].legend()
