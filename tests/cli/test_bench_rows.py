"""Claims about `pymtp bench rows`: mistakes are told before any work; the shipped model goes through it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pymtp.cli import app_main

SMALL = ("--rows", "2,5", "--drafts", "2", "--rounds", "2", "--threads", "1", "--memory", "1")


def run(*arguments: str | Path) -> int:
    """Exit code of `pymtp bench rows`."""
    with pytest.raises(SystemExit) as end:
        app_main(["bench", "rows", *map(str, arguments)])
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rows", "0"], "must be whole numbers"),
        (["--rows", "66"], "--rows '66' must be whole numbers like \"2,3\", from 1 to 65"),
        (["--drafts", "65"], "from 1 to 64"),
        (["--rounds", "0"], "--rounds"),
        (["--memory", "-1"], "--memory"),
        (["--plot", "x.pdf"], "must end in .svg or .png"),
        (["--from", "nowhere.json"], "nowhere.json"),
    ],
    ids=str,
)
def test_mistakes_are_told_before_any_work(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymtp.cli.bench_rows._measure", lambda *_: pytest.fail("it began to work"))
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    assert words in " ".join(shown.err.split())
    assert shown.out == ""


def test_a_model_without_head_is_refused(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", headless) == 2
    assert "has no multi-token-prediction head" in " ".join(capsys.readouterr().err.split())


def test_the_shipped_model_goes_through_and_its_report_is_shown_again(
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
    }  # one row is what others are compared with
    for cell in cells.values():
        assert sum(cell["operations"].values()) > 0
        assert "MUL_MAT q8_0" in cell["operations"]
    assert whole["memory_share"] > 0
    file = tmp_path / "report.json"
    file.write_text(json.dumps(whole))
    assert run("--from", file, "-o", "md") == 0
    assert "| graph | MUL_MAT q8_0 |" in capsys.readouterr().out
