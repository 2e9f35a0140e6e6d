"""Tests of `pymtp bench rows`: it refuses invalid arguments before any work, and measures the shipped model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import bench_command
from helpers.bench_command import INVALID_ARGUMENTS

SMALL = ("--rows", "2,5", "--drafts", "2", "--rounds", "2", "--threads", "1", "--memory", "1")


def run(*arguments: str | Path) -> int:
    return bench_command.run("rows", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rows", "0"], "must be whole numbers"),
        (["--rows", "66"], "--rows '66' must be whole numbers like \"2,3\", from 1 to 65"),
        (["--drafts", "65"], "from 1 to 64"),
        (["--memory", "-1"], "--memory"),
        *INVALID_ARGUMENTS,
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_before_any_work(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_refused_before_any_work("rows", arguments, words, capsys)


def test_model_without_head_is_refused(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", headless) == 2
    assert "has no multi-token-prediction head; --head FILE gives it one" in " ".join(capsys.readouterr().err.split())


def test_bench_measures_the_shipped_model_and_shows_its_saved_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SMALL, "-o", "json") == 0
    whole = json.loads(capsys.readouterr().out)
    cells = {(cell["what"], cell["n"]): cell for cell in whole["cells"]}
    assert set(cells) == {
        ("rows", 1),
        ("rows", 2),
        ("rows", 5),
        ("draft", 2),
    }  # one row is always measured, because ratios need it
    for cell in cells.values():
        assert sum(cell["operations"].values()) > 0
        assert "MUL_MAT q8_0" in cell["operations"]
    assert whole["memory_share"] > 0
    file = tmp_path / "report.json"
    file.write_text(json.dumps(whole))
    assert run("--from", file, "-o", "md") == 0
    assert "| graph | MUL_MAT q8_0 |" in capsys.readouterr().out
    for option in ("--rounds", "--prompt-tokens", "-t"):
        assert run("--from", file, option, "3") == 2
        assert "has no effect beside --from, which measures nothing" in capsys.readouterr().err
