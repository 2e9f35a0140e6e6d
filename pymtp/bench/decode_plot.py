"""Plot of a decode bench: tokens/s by number of drafts for each kind of prompt, and the depths that `auto` chose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pymtp.bench.decode import ARMS, AUTO, format_temperature
from pymtp.bench.decode_report import ALL, DecodeCell, DecodeReport
from pymtp.bench.plot import error_bar_line, saved_figure
from pymtp.bench.prompts import KINDS


def plot(report: DecodeReport, path: Path) -> None:
    """Draw a column of panels for each temperature."""
    cells = [cell for cell in report.cells() if cell.kind != ALL]
    temperatures = sorted({cell.temperature for cell in cells})
    has_auto = any(cell.arm == AUTO for cell in cells)
    heights = {"height_ratios": (3, 1)} if has_auto else {}
    size = (1 + 4.5 * len(temperatures), 5.2 if has_auto else 3.8)
    with saved_figure(path, 1 + has_auto, len(temperatures), sharey="row", figsize=size, gridspec_kw=heights) as panels:
        for i, temperature in enumerate(temperatures):
            _speed(panels[0][i], [cell for cell in cells if cell.temperature == temperature])
            synthetic = ", synthetic acceptance" if report.settings["synthetic"] is not None else ""
            panels[0][i].set_title(f"{format_temperature(temperature)}{synthetic}")
            if has_auto:
                _depths(panels[1][i], report, temperature)
        panels[0][0].set(ylabel="decode, tokens/s", ylim=(0, None))
        panels[0][0].legend(fontsize="small")
        if has_auto:
            panels[1][0].set(ylabel="auto's drafts", ylim=(-0.3, None))
            panels[1][0].yaxis.get_major_locator().set_params(integer=True)


def _speed(axes: Any, cells: list[DecodeCell]) -> None:
    arms = [arm for arm in ARMS if any(cell.arm == arm for cell in cells)]
    for i, kind in enumerate(KINDS):
        points = [(arms.index(cell.arm), cell.decode) for cell in cells if cell.kind == kind and cell.decode]
        if points:
            error_bar_line(axes, [x for x, _ in points], [y for _, y in points], label=kind, color=f"C{i}")
    axes.set_xticks(range(len(arms)), arms)
    axes.set_xlabel("drafts per round")


def _depths(axes: Any, report: DecodeReport, temperature: float) -> None:
    """Draw the depths that `auto` chose in the last bench round, when it has adapted to all earlier rounds."""
    latest = {m.kind: m for m in report.measurements if (m.arm, m.temperature) == (AUTO, temperature)}
    for i, kind in enumerate(KINDS):
        if kind in latest:
            depths = latest[kind].stats.depths
            axes.step(range(len(depths)), depths, where="post", linewidth=1, color=f"C{i}")
    axes.set_xlabel("round of one completion")
