"""Tests of the completion of command lines in a shell."""

from __future__ import annotations

import pytest
from helpers.command import run


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("pymtp ge", ["generate"]),
        ("pymtp bench r", ["rows"]),
        ("pymtp generate --temp", ["--temperature", "--temp"]),
        ("pymtp serve -ctk q8_0 -ngl 99 --port 0 --cache-type-", ["--cache-type-v"]),
        ("pymtp serve --jinja --spec-type draft-mtp --poo", ["--pooling"]),  # no note about the first two
        ("pymtp generate --no-such x --see", ["--seed"]),  # no error either
    ],
)
def test_shell_completion_lists_commands_and_options_and_nothing_else(
    line: str, completed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_PYMTP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    done = run()
    assert (done.stdout.split(), done.stderr) == (completed, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_script_calls_the_program(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PYMTP_COMPLETE", f"source_{shell}")
    assert "_PYMTP_COMPLETE" in run().stdout
