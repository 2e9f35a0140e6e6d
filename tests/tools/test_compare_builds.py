"""Tests of the comparison of two builds, of which both are this one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from compare_builds import ARMS, Build, main, summary


def compare(*only: str, output: Path | None = None, by_rounds: bool = False) -> None:
    python = Path(sys.executable)
    main(python, python, "-", list(only), 16, 8, 1, 1, 1, by_rounds, output)


def test_arms_are_compared_and_the_report_names_machine_and_both_builds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare("prefill fused", "plain", "8 requests", output=tmp_path / "x.json")
    report = json.loads((tmp_path / "x.json").read_text())
    assert list(report["arms"]) == ["prefill fused", "plain", "plain stream", "8 requests"]
    assert all(row["median"] > 0 and row["pairs"] == 1 for row in report["arms"].values())
    assert report["builds"]["old"] == report["builds"]["new"]
    assert {"commit", "llama_cpp_commit", "compiler"} <= {*report["builds"]["old"]}
    assert report["machine"]["cores"] >= 1
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == list(report["arms"])


def test_builds_that_write_different_tokens_are_refused_unless_rounds_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashes = iter("abcd")
    monkeypatch.setattr(Build, "__init__", lambda build, *_, **options: setattr(build, "info", {}))
    monkeypatch.setattr(Build, "measure", lambda *_: (1.0, 2, next(hashes)))
    with pytest.raises(typer.BadParameter, match="the builds write different tokens"):
        compare("depth 3")
    compare("depth 3", by_rounds=True)


def test_unknown_arm_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(typer.BadParameter, match=", ".join(ARMS)):
        compare("nothing")


def test_summary_has_the_median_ratio_and_its_quartiles() -> None:
    row = summary([1.0, 2.0, 3.0], [1.0], [2.0])
    assert (row["lower quartile"], row["median"], row["upper quartile"], row["pairs"]) == (1.0, 2.0, 3.0, 3)
    assert summary([0.5], [1.0], [2.0])["upper quartile"] == 0.5
