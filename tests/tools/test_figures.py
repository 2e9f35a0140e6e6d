"""Tests of figures.py: numbers of pages are those of the files of benchmarks/."""

from __future__ import annotations

import json
from pathlib import Path

import figures
import pytest
import typer
from figures import FigureError, rewrite, unmarked

RECORD = {
    "series": [{"speed": 1234.6, "ratios": [1.0, 3.0, 2.0]}],
    "cells": [{"mode": "none", "tokens": 1024, "ratio": None}, {"mode": "fused", "tokens": 1024, "ratio": 0.5}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a file in place of benchmarks/."""
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(RECORD))
    return tmp_path


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.name)
def test_numbers_of_the_documents_are_those_of_their_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert rewrite(text) == text, "python tools/bench/figures.py --write"


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.name)
def test_no_page_has_a_measured_number_without_a_file(page: Path) -> None:
    assert unmarked(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("expression", "form", "number"),
    [
        ("series[0].speed", ",.0f", "1,235"),
        ("median(series[0].ratios)", ".2f", "2.00"),
        ("max(series[0].ratios)", "", "3.0"),
        ("cells[?mode=='fused' && tokens==`1024`].ratio | [0]", ".0%", "50%"),
        ("only(cells[?mode=='fused']).ratio", ".1f", "0.5"),
        ("ratio(series[0].ratios[1], series[0].ratios[2])", ".1f", "1.5"),
        ("length(cells)", "d", "2"),
    ],
)
def test_number_before_a_comment_becomes_that_of_its_expression(
    expression: str, form: str, number: str, folder: Path
) -> None:
    comment = f"<!-- a.json: {expression}: {form} -->"
    assert rewrite(f"about 9,999.9%{comment} of it") == f"about {number}{comment} of it"


def test_two_numbers_of_a_range_are_written_apart(folder: Path) -> None:
    low, high = (f"<!-- a.json: {name}(series[0].ratios): .0f -->" for name in ("min", "max"))
    assert rewrite(f"| (7{low}-8{high}) | 5 |") == f"| (1{low}-3{high}) | 5 |"


def test_numbers_that_differ_are_told_with_their_lines(folder: Path) -> None:
    told: list[tuple[int, str, str]] = []
    mark = "<!-- a.json: length(cells): d -->"
    rewrite(f"one\n2{mark}\n4{mark}\n", lambda *differing: told.append(differing))
    assert told == [(3, "4", "2")]


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("1<!-- b.json: x: d -->", "line 1: there is no b.json"),
        ("1<!-- a.json: nothing: d -->", "nothing of a.json is None, not a number"),
        ("1<!-- a.json: cells[0].mode: d -->", "is 'none', not a number"),
        ("1<!-- a.json: cells[: d -->", "line 1: cells["),
        ("1<!-- a.json: series[0].speed: d -->", "'d' is not a format"),
        ("1<!-- a.json: only(series[0].ratios): d -->", "is None"),
        ("| 2<!-- a.json: cells | length(@): d --> |", "ends a cell"),
        ("x<!-- a.json: length(cells): d -->", "no number stands before"),
    ],
)
def test_comment_without_a_number_is_an_error(comment: str, words: str, folder: Path) -> None:
    with pytest.raises(FigureError) as error:
        rewrite(comment)
    assert words in str(error.value)


def test_write_changes_the_page_and_the_comparison_fails_before(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("4<!-- a.json: length(cells): d -->")
    with pytest.raises(typer.Exit) as differs:
        figures.main([page], write=False, count=False)
    assert differs.value.exit_code == 1
    figures.main([page], write=True, count=False)
    assert page.read_text() == "2<!-- a.json: length(cells): d -->"
    figures.main([page], write=False, count=False)


def test_unmarked_shows_fractions_of_prose_and_tables_without_a_comment() -> None:
    text = "one\n1.5\n| 1.25 (1,000.5 to 2) | v0.1.2 | 3.5<!-- a.json: x[?y=='0.5']: .1f --> |\n"
    assert unmarked(text) == [(2, "1.5"), (3, "1.25"), (3, "1,000.5")]


def test_unmarked_leaves_out_code_links_versions_sizes_of_models_and_temperatures() -> None:
    text = (
        "`x 1.5` [two](a/2.5.md) <!-- 3.5 --> Qwen3.5, 3.6 and 3.8, Python 3.10, vLLM 0.28, 0.8B, T = 0.7\n\n"
        "    indented 4.5\n\n```sh\n5.5\n```\n\n2.7 million parameters, on 2026-11-28\n"
    )
    assert unmarked(text) == []
    assert unmarked(f"{text}0.8 Byte, vLLM is 0.28 as fast\n") == [(10, "0.8"), (10, "0.28")]


@pytest.mark.parametrize("between", ["", "\n"])
def test_unmarked_leaves_out_the_block_that_is_declared_and_no_other(between: str) -> None:
    text = f"1.5\n\n<!-- no measurement: sizes of files -->\n{between}| 2.5 |\n| 3.5 |\n\n4.5\n"
    assert [number for _, number in unmarked(text)] == ["1.5", "4.5"]


def test_unmarked_option_shows_the_page_and_the_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = folder / "page.md"
    page.write_text("a\n\nb 1.5\n")
    with pytest.raises(typer.Exit):
        figures.main([page], write=False, count=True)
    assert capsys.readouterr().out == f"{page}:3: 1.5 is of no file\n"
