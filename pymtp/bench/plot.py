"""Helpers for the plots of all benches. They need matplotlib, which the extra `bench` installs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pymtp.bench.table import Spread
from pymtp.errors import InvalidRequestError

FORMATS = (".svg", ".png")


def check_plot(path: Path) -> None:
    """Raise InvalidRequestError if no plot can be written to `path`. The check creates no file."""
    if path.suffix not in FORMATS:
        raise InvalidRequestError(f"--plot {path}: the name must end in {' or '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise InvalidRequestError("--plot needs matplotlib: pip install matplotlib")
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise InvalidRequestError(f"--plot {path} cannot be written: {error.strerror}") from error
    if not existed:
        path.unlink()


@contextmanager
def saved_figure(path: Path, rows: int, columns: int, **layout: Any) -> Iterator[Any]:
    """Provide a grid of matplotlib axes of shape (rows, columns). Save the figure to `path` after the block."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # with a fixed salt for ids and without a date, drawing the same report again gives a file with the same bytes
    with plt.rc_context({"svg.hashsalt": "pymtp"}):
        figure, panels = plt.subplots(rows, columns, squeeze=False, layout="constrained", **layout)
        yield panels
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {}, dpi=150)
        plt.close(figure)


def error_bar_line(axes: Any, points: Sequence[tuple[Any, Spread | None]], **style: Any) -> None:
    """Draw a line of medians, with bars from the lowest to the highest value. Draw nothing without a spread."""
    spreads = [(x, spread) for x, spread in points if spread]
    if spreads:
        bars = [[s.median - s.low for _, s in spreads], [s.high - s.median for _, s in spreads]]
        x, y = [x for x, _ in spreads], [s.median for _, s in spreads]
        axes.errorbar(x, y, yerr=bars, marker="o", markersize=4, capsize=3, **style)
