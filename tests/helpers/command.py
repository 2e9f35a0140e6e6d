"""The command line `pymtp`, run by a test: in a process of its own, or in the test's."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pymtp.cli import app_main
from pymtp.cli.screen import screen

# -I: the installed package, not the source folder that the tests may be run beside
PYMTP = (sys.executable, "-I", "-c", "from pymtp.cli import app_main; app_main()")


def run(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command in this process: a new one takes longer to import pymtp than most commands to run."""
    asked = [*map(str, arguments)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        (folder / "stdin").write_text(stdin, encoding="utf-8")
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            stream = stack.enter_context((folder / name).open(mode, encoding="utf-8"))
            patch.setattr(sys, name, stream)
        patch.setattr(screen, "_color_system", None)  # it looked at the terminal when it was made, if there is one
        with pytest.raises(SystemExit) as end:
            app_main(asked)
        sys.stdout.flush()
        sys.stderr.flush()
        said = [(folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(asked, int(end.value.code or 0), *said)


def generate(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """`pymtp generate`, sized for tests."""
    return run("generate", "-t", "1", "-c", "1024", "-n", "16", *arguments, stdin=stdin)
