"""Tests of the completion of command lines in a shell."""

from __future__ import annotations

from pathlib import Path

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
        ("pymtp serve -c 32k -ctk q4", ["q4_1", "q4_0"]),
        ("pymtp chat --cache-type b", ["bf16"]),
        ("pymtp serve --log-level w", ["warning"]),
        ("pymtp serve --pooling me", ["mean"]),
        ("pymtp generate --tap p", ["post_norm", "pre_norm"]),
        ("pymtp generate -fa o", ["on", "off"]),
        ("pymtp info --draft-vocab a", ["auto", "all"]),
        ("pymtp batch -sm l", ["layer"]),
        ("pymtp tap --numa i", ["isolate"]),
        ("pymtp generate -m mod", ["models/", "models/a.gguf", "models/deep/"]),  # a folder alone would get a space
        ("pymtp serve -m hf:o", []),
        ("pymtp info models/a", ["models/a.gguf"]),
        ("pymtp chat --mmproj models/d", ["models/deep/", "models/deep/c.gguf"]),
        ("pymtp tap --head models/.", ["models/.hidden.gguf"]),
        ("pymtp bench rows --lora nowhere/", []),
    ],
)
def test_shell_completion_lists_commands_options_and_values_and_nothing_else(
    line: str, completed: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "models" / "deep").mkdir(parents=True)
    for name in ("a.gguf", "b.txt", ".hidden.gguf", "deep/c.gguf"):
        (tmp_path / "models" / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_PYMTP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    done = run()
    assert (done.stdout.split(), done.stderr) == (completed, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_script_calls_the_program(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PYMTP_COMPLETE", f"source_{shell}")
    assert "_PYMTP_COMPLETE" in run().stdout
