"""What the plots of all benches share. Needs matplotlib: the extra `bench`."""

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
    """Raises InvalidRequestError when no plot could be written to `path`. Leaves nothing there that was not."""
    if path.suffix not in FORMATS:
        raise InvalidRequestError(f"--plot {path}: the name must end in {' or '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise InvalidRequestError("--plot needs matplotlib: pip install matplotlib")
    there = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise InvalidRequestError(f"--plot {path} cannot be written: {error.strerror}") from error
    if not there:
        path.unlink()


@contextmanager
def drawn_to(path: Path, rows: int, columns: int, **layout: Any) -> Iterator[Any]:
    """A grid of matplotlib axes, shape (rows, columns), that is saved to `path` when it is filled."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # the same figure is the same file
    with plt.rc_context({"svg.hashsalt": "pymtp"}):
        figure, panels = plt.subplots(rows, columns, squeeze=False, layout="constrained", **layout)
        yield panels
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {}, dpi=150)
        plt.close(figure)


def line(axes: Any, x: list[Any], spreads: list[Spread], **style: Any) -> None:
    """Medians, and bars from the lowest to the highest."""
    bars = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    axes.errorbar(x, [s.median for s in spreads], yerr=bars, marker="o", markersize=4, capsize=3, **style)
