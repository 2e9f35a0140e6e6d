"""Steps shared by the tests of `pymtp bench`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pymtp.cli import app_main
from pymtp.cli.bench_output import ReportOptions

# arguments that every bench refuses, and a part of the error message
INVALID_ARGUMENTS = [
    (["--rounds", "0"], "--rounds"),
    (["--threads", "many"], "--threads"),
    (["--plot", "x.pdf"], "must end in .svg or .png"),
    (["--plot", "no/such/folder/x.svg"], "cannot be written: No such file or directory"),
    (["--from", "nowhere.json"], "nowhere.json"),
    (["--n-cpu-moe", "-1"], "--n-cpu-moe -1 must be"),
    (["-ot", "(=CPU"], "is no regular expression"),
]


def run(bench: str, *arguments: str | Path) -> int:
    """Run `pymtp bench` and return its exit code."""
    with pytest.raises(SystemExit) as end:
        app_main(["bench", bench, *map(str, arguments)])
    return int(end.value.code or 0)


def run_interrupted(arguments: Sequence[str], line: str) -> tuple[int, str, str]:
    """Run `pymtp bench` in a process, and send Ctrl-C after a line of stderr with this beginning.

    Return exit code, stdout and stderr.
    """
    command = [sys.executable, "-I", "-c", "from pymtp.cli import app_main; app_main()", "bench", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            next(printed for printed in process.stderr if printed.startswith(line))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, out, err


def write_report(bench: str, file: Path, *arguments: str) -> Path:
    """Run a bench and write its report as JSON to `file`."""
    with pytest.MonkeyPatch.context() as patch, file.open("w") as out:
        patch.setattr(sys, "stdout", out)
        assert run(bench, *arguments, "-o", "json") == 0
    return file


def check_refused_before_any_work(
    bench: str, arguments: Sequence[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReportOptions, "measure", lambda *_: pytest.fail("it began to work"))
        assert run(bench, *arguments) == 2
    shown = capsys.readouterr()
    assert words in " ".join(shown.err.split())
    assert shown.out == ""


def check_refused_without_head(
    bench: str,
    headless: Path,
    small: Sequence[str],
    only: Sequence[str],
    title: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check that a model without head is refused, except with the option `only`."""
    assert run(bench, "-m", headless) == 2
    assert f"only be measured with {' '.join(only)}" in " ".join(capsys.readouterr().err.split())
    assert run(bench, "-m", headless, *small, *only) == 0
    assert f"{title}: headless.gguf" in capsys.readouterr().out


def check_saved_report_is_shown_and_plotted(
    bench: str, report: Path, folder: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bench, "--from", report, "-o", "md", "--plot", folder / "x.png") == 0
    assert words in capsys.readouterr().out
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")
