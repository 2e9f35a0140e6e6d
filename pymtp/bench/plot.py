"""Helpers for the plots of all benches. They need matplotlib: the extra `bench`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pymtp.bench.report import Spread
from pymtp.errors import InvalidRequestError

FORMATS = (".svg", ".png")


def check_plot(path: Path) -> None:
    """Raise InvalidRequestError if no plot can be written to `path`. Leave no new file behind."""
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
    """Provide a grid of matplotlib axes of shape (rows, columns). Save the figure to `path` at the end."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # a fixed salt and no date make the same figure the same file
    with plt.rc_context({"svg.hashsalt": "pymtp"}):
        figure, panels = plt.subplots(rows, columns, squeeze=False, layout="constrained", **layout)
        yield panels
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {}, dpi=150)
        plt.close(figure)


def error_bar_line(axes: Any, x: list[Any], spreads: list[Spread], **style: Any) -> None:
    """Draw a line of medians, with bars from the lowest to the highest value."""
    bars = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    axes.errorbar(x, [s.median for s in spreads], yerr=bars, marker="o", markersize=4, capsize=3, **style)
