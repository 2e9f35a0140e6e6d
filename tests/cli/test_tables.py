"""Tests of tables on stdout: tabs in a file or a pipe, lines around the cells in a terminal that is wide enough."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from helpers.command import run
from rich.table import Table
from rich.text import Text

from pymtp.cli.tables import print_tables

BOX = "─│┃━┌┐└┘├┤┡╇┩"  # characters that lines are made of
LONG = "word " * 60


def example() -> Table:
    table = Table("name", "a number", title=Text("A [title]"))
    table.add_row("[b]first[/b]", "1")
    table.add_row(Text("two\nlines"), LONG)
    return table


def printed(monkeypatch: pytest.MonkeyPatch, *, columns: int | None) -> str:
    """Return what a table is printed as. columns: the terminal's, None for a pipe."""
    stdout = io.StringIO()
    monkeypatch.setattr(stdout, "isatty", lambda: columns is not None, raising=False)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("COLUMNS", str(columns or 30))
    monkeypatch.setenv("NO_COLOR", "1")
    print_tables(example(), "a note")
    return stdout.getvalue()


def test_piped_table_has_tabs_and_is_neither_padded_nor_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, columns=None).splitlines() == [
        "A [title]",
        "name\ta number",
        "[b]first[/b]\t1",
        f"two; lines\t{LONG}".rstrip(),
        "",
        "a note",
    ]


def test_terminal_shows_lines_around_cells_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(monkeypatch, columns=40)
    assert "│" in shown
    shown = re.sub(r"\x1b\[[01]m", "", shown)  # bold, which is no colour
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 40


def test_table_too_wide_for_a_terminal_is_printed_as_into_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, columns=8) == printed(monkeypatch, columns=None)


@pytest.mark.parametrize(
    "arguments",
    [("info",), ("info", "--memory")]
    + [
        ("bench", name, "--from", f"benchmarks/{file}")
        for name, file in (
            ("batch", "arriving.json"),
            ("rows", "rows_q4_0.json"),
            ("prefix", "prefix_08b.json"),
            ("prefill", "prefill.json"),
        )
    ],
    ids=" ".join,
)
def test_piped_tables_of_a_command_have_tabs(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = [str(ROOT / word) if Path(word).suffix == ".json" else word for word in arguments]
    shown = run(*words).stdout
    assert shown.count("\t") > 10
    assert not set(shown) & set(BOX)
    assert "   " not in shown
