"""The price of verifying a few rows, relative to one row: of a whole verification, and by the type of the weights."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pymtp.bench.rows import ROWS, RowsMeasurement, RowsSettings, open_bench
from pymtp.model.model import Model

PRICED = 4  # rows
ROUNDS = 5


@dataclass(frozen=True)
class RowPrices:
    """The time of a verification of PRICED rows, as a multiple of that of one row.

    whole: of the whole verification.
    by_type: of the products with the weights of each type, by ggml's name of the type; only those that the CPU makes.
    """

    whole: float
    by_type: dict[str, float]


def measure_prices(model: Model, *, threads: int, cache_type: str) -> RowPrices:
    """Measure the prices of a model with a head. Raises NativeError if there is too little memory."""
    settings = RowsSettings(
        model=model.file_names,
        rounds=ROUNDS,
        threads=threads,
        gpu_layers=model.options.layers,
        cache_type=cache_type,
        rows=(1, PRICED),
        steps=(),
        memory=0,
    )
    with open_bench(model, settings) as bench:
        bench.run()
        return row_prices(bench.measurements)


def row_prices(measurements: Sequence[RowsMeasurement]) -> RowPrices:
    """Compute the prices from measurements of verifications of 1 and of PRICED rows: the median over bench rounds."""
    # a type without time of its own is computed with another
    types = {o.weights for m in measurements if m.n == 1 for o in m.operations if _is_product(o.op) and o.seconds} - {
        ""
    }
    return RowPrices(
        whole=_ratio(measurements, lambda m: statistics.median(m.seconds)),
        by_type={
            kind: _ratio(
                measurements,
                lambda m, kind=kind: sum(o.seconds for o in m.operations if _is_product(o.op) and o.weights == kind),  # type: ignore[misc]
            )
            for kind in sorted(types)
        },
    )


def _is_product(op: str) -> bool:
    return op.startswith("MUL_MAT")  # with "MUL_MAT_ID", the products with experts


def _ratio(measurements: Sequence[RowsMeasurement], seconds: Callable[[RowsMeasurement], float]) -> float:
    by_rows = {(m.round, m.n): seconds(m) for m in measurements if m.what == ROWS}
    return statistics.median(
        by_rows[turn, PRICED] / by_rows[turn, 1] for turn, n in by_rows if n == 1 and by_rows[turn, 1]
    )
