"""Claims about what a bench shows while it works."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from pymtp.cli.bench_output import check_failed
from pymtp.cli.completion import figures
from pymtp.cli.progress import Watch
from pymtp.errors import NativeError
from pymtp.stats import Stats


def test_a_bench_that_is_done_says_so_and_names_nothing_that_still_runs() -> None:
    shown = StringIO()
    with Watch(2, Console(file=shown, width=100)) as watch:
        for left in (None, 3.0):
            watch.start("32 rows", left)
            watch.done("a line")
    last = shown.getvalue().splitlines()[-1]
    assert "2/2" in last
    assert "done" in last
    assert "32 rows" not in last
    assert "left" not in last


@pytest.mark.parametrize(("n", "words"), [(1, "1 measurement failed; it is"), (2, "2 measurements failed; they are")])
def test_failures_are_counted_in_words(n: int, words: str) -> None:
    check_failed(0)
    with pytest.raises(NativeError, match=f"{words} named under the tables"):
        check_failed(n)


@pytest.mark.parametrize("lost", [1, 2])
def test_drafts_lost_to_the_draft_vocabulary_are_told(lost: int) -> None:
    assert figures(Stats(outside_per_position=(lost,))).endswith(f"drafts lost to the draft vocabulary: {lost}")
    assert "draft vocabulary" not in figures(Stats(outside_per_position=(0,)))
