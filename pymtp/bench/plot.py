"""Throughput over prompt size, one line a mode. Needs matplotlib: the extra `bench`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pymtp.bench.prefill import MODES, NONE, tokens
from pymtp.bench.prefill_report import Report
from pymtp.errors import InvalidRequestError

FORMATS = (".svg", ".png")


def check_plot(path: Path) -> None:
    """Raises InvalidRequestError when no plot could be written to `path`. Leaves nothing there that was not."""
    if path.suffix not in FORMATS:
        raise InvalidRequestError(f"--plot {path}: the name must end in {' or '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise InvalidRequestError("--plot needs matplotlib: pip install 'pymtp[bench]'")
    there = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise InvalidRequestError(f"--plot {path} cannot be written: {error.strerror}") from error
    if not there:
        path.unlink()


def plot(report: Report, path: Path) -> None:
    """Medians, and bars from the lowest to the highest; a panel for each depth."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cells = report.cells()
    depths = sorted({cell.depth for cell in cells if cell.mode != NONE}) or [0]
    sizes = sorted({cell.size for cell in cells})
    # the same figure is the same file
    with plt.rc_context({"svg.hashsalt": "pymtp"}):
        figure, panels = plt.subplots(
            1, len(depths), sharey=True, squeeze=False, figsize=(1 + 4 * len(depths), 3.6), layout="constrained"
        )
        for depth, axes in zip(depths, panels[0], strict=True):
            for i, mode in enumerate(MODES):
                line = [(c.size, c.prefill) for c in cells if c.mode == mode and c.depth in (0, depth) and c.prefill]
                if not line:
                    continue
                x, spreads = zip(*line, strict=True)
                y = [spread.median for spread in spreads]
                bars = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
                axes.errorbar(x, y, yerr=bars, marker="o", markersize=4, capsize=3, label=mode, color=f"C{i}")
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [tokens(size) for size in sizes], minor=False)
            axes.minorticks_off()
            axes.set_title(f"{depth} drafts a round" if depth else "no drafts")
            axes.set_xlabel("prompt, tokens")
        panels[0][0].set(ylabel="prefill, tokens/s", ylim=(0, None))
        panels[0][0].legend()
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=metadata, dpi=150)
        plt.close(figure)
