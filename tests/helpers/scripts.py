"""Scripts in their own process, for tests whose code may end the process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from threading import Timer

from helpers.warm import Program, WarmProcess

SLOW = "TSAN_OPTIONS" in os.environ

PREAMBLE = """
import os, signal, threading, time
import pymtp
from pymtp.context import Context
n_threads = lambda: len(os.listdir("/proc/self/task"))
before_models = n_threads()
model = pymtp.Model()
text = lambda llm: llm.generate("import ", pymtp.SamplingParams(8)).text
def signal_in(is_in_the_call, number):
    def wait():
        while not is_in_the_call():
            time.sleep(0.001)
        time.sleep(0.05)  # the main thread may have a few lines left until it waits
        os.kill(os.getpid(), number)
    threading.Thread(target=wait, daemon=True).start()
"""


def run_script(script: str, *, warm: bool = True) -> list[str]:
    """Run a script in its own process, which must exit without errors, and return the lines that it prints.

    warm: as a fork of a process that has imported pymtp; see run_code.
    """
    code, printed = run_code(PREAMBLE + script, warm=warm)
    assert code == 0, printed
    return printed.splitlines()


def run_code(code: str, arguments: Sequence[str] = (), *, warm: bool = True) -> tuple[int, str]:
    """Run Python code like `python -I -c`, and return the exit code and what it prints on stdout and stderr.

    warm: on Linux, the process is a fork of one that has imported pymtp; see warm.py.
    """
    seconds = 1000 if SLOW else 100
    if not warm or sys.platform != "linux":
        command = [sys.executable, "-I", "-c", code, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
        return done.returncode, done.stdout
    process = WarmProcess(Program(f"import os; os.dup2(2, 1)\n{code}", arguments), os.environ)
    end = Timer(seconds, process.kill)
    end.start()
    with process.stderr:
        printed = process.stderr.read()
    end.cancel()
    return process.wait(), printed
