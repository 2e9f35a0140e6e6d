"""Tests of bench_types.py: the price of rows of each type of weights is in its file."""

from __future__ import annotations

import json
from pathlib import Path

import bench_types


def test_file_has_the_price_of_rows_of_each_type_and_the_processor(tmp_path: Path) -> None:
    bench_types.main("q4_0,iq2_xxs", rounds=1, threads=1, output=tmp_path / "types.json")
    record = json.loads((tmp_path / "types.json").read_text())
    assert [each["type"] for each in record["types"]] == ["q4_0", "iq2_xxs"]
    for each in record["types"]:
        assert each["one_row_ms"] > 0
        assert each["rows"].keys() == {"2", "4", "8"}
        assert all(ratios["low"] <= ratios["median"] <= ratios["high"] for ratios in each["rows"].values())
    assert record["machine"]["cpu"]
    assert record["build"]["cpu_features"]
