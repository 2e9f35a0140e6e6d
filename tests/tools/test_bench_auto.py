"""Tests of the comparison of `auto` with fixed depths."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from bench_auto import Setting, main

from pymtp import Model


def test_each_setting_is_measured_and_the_table_has_a_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--requests 1,2 --temperatures 0 --depths 0,2 --prompts random --tokens 6 --repeats 1 --threads 1"
    monkeypatch.setattr(sys, "argv", ["bench_auto.py", *options.split(), "--json", str(tmp_path / "x.json")])
    main()
    rows = json.loads((tmp_path / "x.json").read_text())
    assert [(row["requests"], row["answers"]) for row in rows] == [(n, a) for n in (1, 2) for a in ("first", "later")]
    assert all(row["plain"] > 0 and row["auto"] > 0 and row["best depth"] in (0, 2) for row in rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(rows)
    assert lines[0].startswith("model  requests  T  prompts  answers  plain  auto  best depth")


def test_auto_is_related_to_the_fixed_depth_with_the_best_median() -> None:
    with Model(vocab_only=True) as model:
        setting = Setting(model, 1, 0.0, "random", Namespace(repeats=3))
    setting.rates = {"first": {}, "later": {0: [10.0, 10.0, 10.0], 3: [20.0, 20.0, 5.0], "auto": [18.0, 18.0, 9.0]}}
    (row,) = (row for row in setting.rows() if row["answers"] == "later")
    assert (row["best depth"], row["best / plain"], row["auto / plain"]) == (3, 2.0, 1.8)
    assert row["auto / best"] == pytest.approx(0.9)
