"""Tests of the progress of a bench, and of the figures of a completion."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from pymtp.cli.bench_output import check_failed
from pymtp.cli.completion import format_figures
from pymtp.cli.progress import BenchProgress
from pymtp.errors import NativeError
from pymtp.stats import Stats


def test_finished_progress_shows_done_and_no_running_measurement() -> None:
    shown = StringIO()
    with BenchProgress(2, Console(file=shown, width=100)) as progress:
        for left in (None, 3.0):
            progress.start("32 rows", left)
            progress.finish("a line")
    last = shown.getvalue().splitlines()[-1]
    assert "2/2" in last
    assert "done" in last
    assert "32 rows" not in last
    assert "left" not in last


@pytest.mark.parametrize(("n", "words"), [(1, "1 measurement failed"), (2, "2 measurements failed")])
def test_check_failed_raises_an_error_with_the_number_of_failures(n: int, words: str) -> None:
    check_failed(0)
    with pytest.raises(NativeError, match=f"{words}: the reasons stand under the tables"):
        check_failed(n)


@pytest.mark.parametrize("lost", [1, 2])
def test_figures_show_drafts_lost_because_of_the_draft_vocabulary(lost: int) -> None:
    assert format_figures(Stats(outside_per_position=(lost,))).endswith(
        f"drafts lost because the draft vocabulary lacks the token: {lost}"
    )
    assert "draft vocabulary" not in format_figures(Stats(outside_per_position=(0,)))
