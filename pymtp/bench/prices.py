"""The price of verifying a few rows, relative to one row: of a whole verification, and by the type of the weights."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pymtp.bench.rows import ROWS, RowsMeasurement, RowsSettings, open_bench
from pymtp.context.inspect import Operation
from pymtp.errors import NativeError
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
    """Measure the prices of a model with a head. Raises NativeError if a decode fails or there is too little memory."""
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
        if bench.failed:
            raise NativeError(f"rows could not be measured: {'; '.join(bench.failed)}")
        return row_prices(bench.measurements)


def row_prices(measurements: Sequence[RowsMeasurement]) -> RowPrices:
    """Compute the prices from measurements of verifications of 1 and of PRICED rows: the median over bench rounds."""
    one_row = [o for m in measurements if (m.what, m.n) == (ROWS, 1) for o in m.operations]
    # nodes that are computed together count at the first of them: a type may have no time of its own
    types = {o.weights for o in one_row if _is_product(o) and o.seconds} - {""}
    return RowPrices(
        whole=_ratio(measurements, lambda m: statistics.median(m.seconds)),
        by_type={kind: _ratio(measurements, partial(_product_seconds, kind=kind)) for kind in sorted(types)},
    )


def _is_product(operation: Operation) -> bool:
    return operation.op.startswith("MUL_MAT")  # with "MUL_MAT_ID", the products with experts


def _product_seconds(m: RowsMeasurement, kind: str) -> float:
    return sum(o.seconds for o in m.operations if _is_product(o) and o.weights == kind)


def _ratio(measurements: Sequence[RowsMeasurement], seconds: Callable[[RowsMeasurement], float]) -> float:
    by_rows = {(m.round, m.n): seconds(m) for m in measurements if m.what == ROWS}
    pairs = [(by_rows[turn, PRICED], one) for (turn, n), one in by_rows.items() if n == 1 and one]
    return statistics.median(four / one for four, one in pairs)
