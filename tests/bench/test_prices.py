"""Tests of the prices of rows, from measurements with made-up times."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pymtp import Model
from pymtp.bench import prices
from pymtp.bench.prices import PRICED, measure_prices, row_prices
from pymtp.bench.rows import DRAFT, ROWS, RowsMeasurement
from pymtp.context.inspect import Operation
from pymtp.errors import NativeError


def measurement(turn: int, n: int, whole: float, *times: tuple[str, str, float], what: str = ROWS) -> RowsMeasurement:
    operations = [Operation(op, weights, 1, seconds, 0.0, 0) for op, weights, seconds in times]
    return RowsMeasurement(turn, what, n, [whole, 9 * whole, whole / 9], [whole], operations, 0.0)


def test_prices_are_medians_over_rounds_of_times_relative_to_one_row() -> None:
    rows = [
        measurement(turn, n, whole * slow, ("MUL_MAT", "q4_K", 1.0), ("MUL_MAT_ID", "q4_K", n * slow), ("ADD", "", n))
        for turn, slow in enumerate((1.0, 1.0, 2.0))
        for n, whole in ((1, 10.0), (PRICED, 15.0 if turn else 40.0))
    ]
    found = row_prices([*rows, measurement(0, PRICED, 99.0, what=DRAFT)])
    assert found.whole == pytest.approx(1.5)
    assert found.by_type == {"q4_K": pytest.approx((1 + PRICED) / 2)}


def test_products_without_weights_and_other_operations_have_no_price() -> None:
    rows = [measurement(0, n, 1.0 * n, ("MUL_MAT", "", 1.0), ("GET_ROWS", "q8_0", 1.0)) for n in (1, PRICED)]
    assert row_prices(rows).by_type == {}


def test_failed_decode_leaves_no_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SimpleNamespace(run=lambda: None, failed=Counter({"4 rows: no memory": 2}), measurements=[])
    monkeypatch.setattr(prices, "open_bench", lambda *_: nullcontext(bench))
    with Model(vocab_only=True) as model, pytest.raises(NativeError, match="could not be measured: 4 rows: no memory"):
        measure_prices(model, threads=1, cache_type="f16")
