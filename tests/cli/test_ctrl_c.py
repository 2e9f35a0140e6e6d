"""Tests of Ctrl-C before a command runs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# sends the signal during the import of a module
AT_IMPORT = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["pymtp", "info"]
from importlib.metadata import entry_points
(program,) = entry_points(group="console_scripts", name="pymtp")
program.load()()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to this process alone")
@pytest.mark.parametrize("module", ["pymtp.async_llm", "pymtp.cli.app", "rich.console"])
def test_ctrl_c_during_the_imports_prints_nothing(module: str) -> None:
    code = AT_IMPORT.format(module=module)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


BEFORE_THE_COMMAND = """
import os, signal, sys
import typer.core
init = typer.core.TyperOption.__init__
def interrupted(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGINT)
    init(*arguments, **keywords)
typer.core.TyperOption.__init__ = interrupted
sys.argv = ["pymtp", "info"]
from pymtp_command import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to this process alone")
def test_ctrl_c_before_the_command_starts_prints_nothing() -> None:
    command = [sys.executable, "-I", "-c", BEFORE_THE_COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")
