"""What tests of the benches' commands do."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pymtp.cli import app_main

# of every bench: arguments, and words of what is said about them
MISTAKES = [
    (["--rounds", "0"], "--rounds"),
    (["--threads", "many"], "--threads"),
    (["--plot", "x.pdf"], "must end in .svg or .png"),
    (["--plot", "no/such/folder/x.svg"], "cannot be written: No such file or directory"),
    (["--from", "nowhere.json"], "nowhere.json"),
    (["--n-cpu-moe", "-1"], "--n-cpu-moe -1 must be"),
    (["-ot", "(=CPU"], "is no regular expression"),
]


def run(bench: str, *arguments: str | Path) -> int:
    """Exit code of `pymtp bench`."""
    with pytest.raises(SystemExit) as end:
        app_main(["bench", bench, *map(str, arguments)])
    return int(end.value.code or 0)


def interrupted(command: Sequence[str], line: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a bench that gets Ctrl-C once stderr has a line that begins so."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            next(said for said in process.stderr if said.startswith(line))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, out, err


def written(bench: str, file: Path, *arguments: str) -> Path:
    """A report as JSON, in `file`."""
    with pytest.MonkeyPatch.context() as patch, file.open("w") as out:
        patch.setattr(sys, "stdout", out)
        assert run(bench, *arguments, "-o", "json") == 0
    return file


def check_told_before_any_work(
    bench: str, arguments: Sequence[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"pymtp.cli.bench_{bench}._measure", lambda *_: pytest.fail("it began to work"))
        assert run(bench, *arguments) == 2
    shown = capsys.readouterr()
    assert words in " ".join(shown.err.split())
    assert shown.out == ""


def check_told_of_no_head(
    bench: str,
    headless: Path,
    small: Sequence[str],
    only: Sequence[str],
    title: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """only: the option that is left."""
    assert run(bench, "-m", headless) == 2
    assert f"only be measured with {' '.join(only)}" in " ".join(capsys.readouterr().err.split())
    assert run(bench, "-m", headless, *small, *only) == 0
    assert f"{title}: headless.gguf" in capsys.readouterr().out


def check_shown_and_drawn_again(
    bench: str, report: Path, folder: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bench, "--from", report, "-o", "md", "--plot", folder / "x.png") == 0
    assert words in capsys.readouterr().out
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")
