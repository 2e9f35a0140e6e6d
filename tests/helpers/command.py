"""The command line `pymtp` for tests: in a process of its own, or in that of the test."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from typer.main import get_command

from pymtp.cli import app_main
from pymtp.cli.app import app
from pymtp.cli.screen import screen

# -I: use the installed package, not a source folder in the working directory
PYMTP = (sys.executable, "-I", "-c", "from pymtp.cli import app_main; app_main()")


def run(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in this process: in a new one, the import of pymtp takes longer than most commands."""
    words = [*map(str, arguments)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        (folder / "stdin").write_text(stdin, encoding="utf-8")
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            stream = stack.enter_context((folder / name).open(mode, encoding="utf-8"))
            patch.setattr(sys, name, stream)
        patch.setattr(screen, "_color_system", None)  # the console may have found a terminal when it was made
        with pytest.raises(SystemExit) as end:
            app_main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        outputs = [(folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(words, int(end.value.code or 0), *outputs)


@cache
def typer_command() -> Any:
    """Return the group of all commands, as typer makes it."""
    return get_command(app)


def parse(*arguments: str) -> Any:
    """Parse the arguments of a command, which does not run. Return its context, as typer makes it."""
    command = typer_command()
    words = ["pymtp", *arguments]
    context = None
    while words:
        name = words.pop(0)
        command = command.commands[name] if context is not None else command
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "commands"):
            break
    return context


def generate(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `pymtp generate` with a small context and few tokens."""
    return run("generate", "-t", "1", "-c", "1024", "-n", "16", *arguments, stdin=stdin)
