"""Tests of vendor/layout.py count: the number of lines that the patches change in llama.cpp."""

from __future__ import annotations

from pathlib import Path

import layout
import pytest
from count import MAX_FILES, MAX_LINES, MAX_LINES_OF_PATCH
from helpers.vendored import NUMBERED, add_patch, make_checkout
from sources import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return make_checkout(tmp_path)


def added(lines: int) -> str:
    return "".join(f"new {n}\n" for n in range(lines))


def test_count_prints_the_lines_of_each_patch_and_each_file(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    add_patch(paths, "0001-two", "src/llama.cpp", "line 9\n", "nine\n")
    add_patch(paths, "0002-three", "ggml/ggml.c", "line 9\n", "nine\nten\n")
    add_patch(paths, "0003-one", "src/llama.cpp", "line 40\n", "")  # the last line of its file
    assert layout.main(["count"], paths) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines() if line] == [
        ["lines", "patch"],
        ["2", "0001-two.patch"],
        ["3", "0002-three.patch"],
        ["1", "0003-one.patch"],
        ["lines", "file"],
        ["3", "src/llama.cpp"],
        ["3", "ggml/ggml.c"],
        ["6", "changed", "lines", "in", "2", "files", "by", "3", "patches"],
    ]


def test_count_includes_lines_that_look_like_diff_headers(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    add_patch(paths, "0001-dashes", "src/q.sql", "-- a/x\n", "++ b/y\n", "-- a/x\nselect\n")
    layout.main(["count"], paths)
    assert "2  src/q.sql" in capsys.readouterr().out


def test_count_check_passes_at_the_limits(paths: Paths) -> None:
    add_patch(paths, "0001-full", "src/llama.cpp", "line 9\n", "line 9\n" + added(MAX_LINES_OF_PATCH))
    assert layout.main(["count", "--check"], paths) == 0


def test_count_check_names_a_patch_over_its_limit(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    add_patch(paths, "0001-long", "src/llama.cpp", "line 9\n", "line 9\n" + added(MAX_LINES_OF_PATCH + 1))
    assert layout.main(["count"], paths) == 0
    assert layout.main(["count", "--check"], paths) == 1
    assert f"61 lines in 0001-long.patch, more than {MAX_LINES_OF_PATCH}" in capsys.readouterr().err


def test_count_check_limits_the_total_lines_and_files(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(MAX_FILES + 1):
        add_patch(paths, f"{n:04}-p", f"src/f{n}.cpp", "line 9\n", added(13), NUMBERED)
    assert layout.main(["count", "--check"], paths) == 1
    said = capsys.readouterr().err
    assert f"{26 * 14} lines, more than {MAX_LINES}" in said
    assert f"26 files, more than {MAX_FILES}" in said
