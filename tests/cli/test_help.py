"""Tests of help pages: common options first, an example that parses, any width, and no colours."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from helpers.command import parse, run, typer_command

from pymtp.cli.help_pages import PAGES

SCREEN = 24  # lines


def find(words: str) -> Any:
    """Return typer's command of a command line's first words."""
    command = typer_command()
    for word in words.split():
        command = command.commands[word]
    return command


def all_commands(words: str = "") -> list[str]:
    """Return the words of all commands, those of groups too."""
    found = [words]
    for name in getattr(find(words), "commands", {}):
        found += all_commands(f"{words} {name}".strip())
    return found


def show(words: str) -> str:
    done = run(*words.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def first_part(page: str) -> list[str]:
    """Return the lines of a help page down to the end of the common options."""
    return re.split(r"\n\n(?!Common)(?=[A-Z][\w ,]+:\n)", page, maxsplit=1)[0].splitlines()


def test_each_command_has_a_help_page() -> None:
    assert set(PAGES) == set(all_commands())


@pytest.mark.parametrize("words", PAGES)
def test_common_options_and_an_example_fit_a_screen(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = show(words)
    common = first_part(page)
    assert len(common) <= SCREEN
    assert [line for line in page.splitlines() if len(line) > 80] == []
    assert PAGES[words].example in page
    names = {param.name: param for param in find(words).params}
    for name in PAGES[words].common:
        assert any(line.lstrip().startswith("-") and names[name].opts[0] in line for line in common), name


@pytest.mark.parametrize("words", PAGES)
def test_example_of_a_help_page_parses(words: str) -> None:
    program, *arguments = shlex.split(PAGES[words].example)
    assert (program, arguments[: len(words.split())]) == ("pymtp", words.split())
    context = parse(*arguments)
    given = [name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"]
    assert given


@pytest.mark.parametrize("words", PAGES)
def test_help_names_all_options_at_any_width(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for param in find(words).params for name in (*param.opts, *param.secondary_opts) if name[0] == "-"}
    for columns in (40, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        page = show(words)
        assert columns == 40 or "..." not in page.replace("[ARGS]...", "")
        assert names <= set(re.findall(r"(?<![\w-])--?[a-zA-Z][a-z0-9-]*", page))


def test_help_of_the_decode_bench_shows_new_without_an_emoji() -> None:
    assert "3:new" in show("bench decode")


def test_help_names_every_command() -> None:
    page = show("")
    assert all(name in page for name in find("").commands)


def test_no_color_leaves_the_help_and_errors_without_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    refused = run("generate", "--temprature", "1", "x")
    assert refused.stderr.startswith("error: ")
    assert "\x1b" not in show("generate") + refused.stdout + refused.stderr
