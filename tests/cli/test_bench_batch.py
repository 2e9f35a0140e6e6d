"""Tests of `pymtp bench batch`: it refuses invalid arguments before any work, and measures the shipped model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import bench_command
from helpers.bench_command import INVALID_ARGUMENTS

from pymtp.drafting.depth import MAX_AUTO

SMALL = ("--sequences", "3,1", "--depths", "2,none,auto", "--prompt", "8", "--tokens", "12", "--warm-up", "4")
ONCE = ("--rounds", "1", "--threads", "1")


def run(*arguments: str | Path) -> int:
    return bench_command.run("batch", *arguments)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measure the shipped model; the report as a JSON file."""
    return bench_command.write_report(
        "batch", tmp_path_factory.mktemp("bench") / "report.json", *SMALL, *ONCE, "--acceptance", "real,1"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sequences", "0"], "--sequences '0' must be whole numbers"),
        (["--sequences", "257"], "from 1 to 256"),
        (["--depths", "none,9"], "'9' is not known, the names are none, 1, 2"),
        (["--depths", "3:new"], "'3:new' is not known"),
        (["--acceptance", "real,1.5"], "--acceptance '1.5' must be numbers from 0 to 1"),
        (["--acceptance", "often"], "--acceptance 'often' must be numbers"),
        (["--arriving", "long"], "--arriving 'long' must be a whole number"),
        (["--arriving", "1k,4k"], "--arriving '1k,4k' must be a whole number"),
        (["--arriving", "1000000k"], "from 1 to 262144"),
        (["--sequences", "256", "--arriving", "4k"], "from 1 to 255"),
        (["--rate", "0"], "--rate"),
        (["--tokens", "1"], "--tokens"),
        (["--kinds", "prose"], "--kinds has no effect without --forced-text"),
        (["--forced-text", "library", "--rate", "2"], "--rate has no effect beside --forced-text"),
        *INVALID_ARGUMENTS,
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_before_any_work(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_refused_before_any_work("batch", arguments, words, capsys)


def test_model_without_head_is_refused_with_a_hint(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench_command.check_refused_without_head(
        "batch", headless, (*SMALL, *ONCE), ("--depths", "none"), "Requests, real acceptance", capsys
    )


def test_batch_bench_measures_all_arms_of_the_shipped_model_with_consistent_figures(measured: Path) -> None:
    report = json.loads(measured.read_text())
    measurements: list[dict[str, Any]] = report["measurements"]
    assert len(measurements) == 2 * 2 * 3
    for m in measurements:
        n, depths = m["n"], {int(depth): times for depth, times in m["depths"].items()}
        assert m["tokens"] == 12 * n
        assert sum(depths.values()) == m["rounds"] <= m["steps"]
        assert max(depths) <= {"none": 0, "2": 2, "auto": MAX_AUTO}[m["arm"]]
        # one call for each prompt and each round; a round needs several if the remaining sequences are not adjacent
        assert m["rounds"] + n <= m["target_launches"] <= n * m["rounds"] + n
        assert m["rows"] <= n * sum((1 + depth) * times for depth, times in depths.items())
        assert 0 < m["python_seconds"] < m["step_seconds"] <= m["seconds"]
        assert 0 < m["gaps"]["median"] <= m["gaps"]["p99"] <= m["gaps"]["longest"] < m["seconds"]
        assert m["first_token"]["longest"] < m["seconds"]
    texts = [m["digests"] for m in measurements if m["acceptance"] == "real"]
    assert len({text for digests in texts for text in digests}) == 3


def test_synthetic_acceptance_of_one_accepts_all_drafts(measured: Path) -> None:
    cells = json.loads(measured.read_text())["cells"]
    for cell in cells:
        if (cell["acceptance"], cell["arm"]) == ("1", "2"):
            assert cell["accepted"] == 1
            assert cell["tokens"] > 2.5 * cell["n"]


def test_saved_report_is_shown_and_plotted_without_measuring(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_saved_report_is_shown_and_plotted(
        "batch", measured, tmp_path, "same text: yes, 9 texts compared", capsys
    )


def test_requests_with_a_rate_do_not_arrive_all_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    rate = ("--sequences", "2", "--depths", "none", "--requests", "3", "--rate", "200")
    assert run(*SMALL, *ONCE, *rate, "-o", "json") == 0
    (m,) = json.loads(capsys.readouterr().out)["measurements"]
    assert m["tokens"] == 6 * 12
    assert len(m["digests"]) == 6
    assert m["seconds"] > 0.01  # the last request arrives after more than 0.01 seconds


def test_arriving_prompt_can_be_measured_at_any_depth(capsys: pytest.CaptureFixture[str]) -> None:
    arriving = ("--sequences", "2", "--acceptance", "1", "--depths", "none,auto", "--arriving", "520")
    assert run(*SMALL, *ONCE, *arriving, "-o", "json") == 0
    for m in json.loads(capsys.readouterr().out)["measurements"]:
        assert m["arriving"]["longest_gap"] > m["arriving"]["round_seconds"] > 0
        assert m["arriving"]["ubatch_seconds"] > 0


def test_forced_texts_decode_together_in_all_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"    names.append({name!r})\n" for name in ("left", "right", "upper"))
    lines = ({"kind": kind, "prompt": f"{text * 12}# {kind}\n", "text": text} for kind in ("a", "b"))
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    forced = ("--forced-text", tmp_path / "texts.jsonl", "--sequences", "3", "--kinds", "b,a,b", "--warm-up", "4")
    assert run(*forced, "--kinds", "a,poems") == 2
    assert "'poems' is not known, the names are a, b" in " ".join(capsys.readouterr().err.split())
    assert run(*forced, "--tokens", "20", *ONCE, "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert sorted(m["arm"] for m in report["measurements"]) == ["2", "auto", "auto:head", "none"]
    assert {text for m in report["measurements"] for text in m["digests"]} == {report["measurements"][0]["digests"][0]}
    for m in report["measurements"]:
        assert m["tokens"] == 3 * 20
        assert sum(m["depths"].values()) == m["rounds"] == m["steps"] <= 19
        assert m["target_launches"] >= m["rounds"], "without the prefills"
        assert m["gaps"]["longest"] < m["seconds"]
    (none,) = (m for m in report["measurements"] if m["arm"] == "none")
    assert (none["rounds"], none["rows"], none["target_launches"]) == (19, 3 * 19, 19)
