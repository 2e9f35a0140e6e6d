"""Tests of `pymtp bench prefix`: it refuses invalid arguments before any work, and measures the shipped model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import bench_command
from helpers.bench_command import INVALID_ARGUMENTS

from pymtp.bench.traces import NAMES
from pymtp.cli.bench_prefix import TRACES

SMALL = ("--scale", "0.1", "--requests", "6", "--rounds", "1", "--threads", "1", "--n-seq-max", "2")


def run(*arguments: str | Path) -> int:
    return bench_command.run("prefix", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--traces", "chat,poems"], "--traces 'poems' is not known, the names are chat, agents"),
        (["--scale", "0"], "--scale"),
        (["--requests", "0"], "--requests"),
        (["--cache", "-1"], "--cache"),
        (["--n-seq-max", "0"], "--n-seq-max"),
        *INVALID_ARGUMENTS,
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_before_any_work(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_refused_before_any_work("prefix", arguments, words, capsys)


def test_prefix_bench_runs_all_traces_by_default() -> None:
    assert tuple(TRACES.split(",")) == NAMES


def test_bench_measures_the_shipped_model_and_shows_its_saved_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SMALL, "-o", "json") == 0
    whole = json.loads(capsys.readouterr().out)
    cells = {cell["trace"]: cell for cell in whole["cells"]}
    assert tuple(cells) == NAMES
    assert sum(cell["differing"] for cell in cells.values()) == 0
    for m in whole["measurements"]:
        assert all(m["prompt"])
        assert len(m["prompt"]) == len(m["read"]) == len(m["unseen"]) == len(m["first_token"]) == sum(m["waves"])
        assert all(seconds > 0 for seconds in (*m["first_token"], *m["first_token_none"]))
        assert m["figures"]["nbytes"] <= m["nbytes"]
    assert cells["prefixes"]["cache_bytes"] == cells["messages"]["cache_bytes"] > 0
    assert cells["prefixes"]["nbytes"] <= cells["prefixes"]["cache_bytes"]
    assert cells["at-once"]["read"]["median"] < 0.5 * cells["at-once"]["prompt"]
    assert cells["alone"]["read"]["median"] == cells["alone"]["prompt"]
    assert cells["disk"]["saved"]["nbytes"] > 0
    assert cells["disk"]["read"]["median"] == cells["disk"]["unseen"] < 0.1 * cells["disk"]["prompt"]
    assert {row["trace"] for row in whole["rows"]} == {*NAMES} - {"disk"}
    file = tmp_path / "report.json"
    file.write_text(json.dumps(whole))
    assert run("--from", file, "-o", "md") == 0
    assert "same text: yes" in capsys.readouterr().out


def test_prefix_bench_measures_a_model_without_head(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", headless, *SMALL, "--traces", "four", "--cache", "1", "-o", "csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("four,")
