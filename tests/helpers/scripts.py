"""Scripts that run in a process of their own: what ends a process must not end the tests."""

from __future__ import annotations

import os
import subprocess
import sys

SLOW = "TSAN_OPTIONS" in os.environ

PREAMBLE = """
import os, signal, threading, time
import pymtp
from pymtp.context import Context
n_threads = lambda: len(os.listdir("/proc/self/task"))
before_models = n_threads()
model = pymtp.Model()
text = lambda llm: llm.generate("import ", pymtp.SamplingParams(8)).text
"""


def run(script: str) -> list[str]:
    """The lines that a script prints in a process of its own, which must not end early."""
    command = [sys.executable, "-I", "-c", PREAMBLE + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000 if SLOW else 100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
