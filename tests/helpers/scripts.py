"""Scripts in their own process, for tests whose code may end the process."""

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
def signal_in(is_in_the_call, number):
    def wait():
        while not is_in_the_call():
            time.sleep(0.001)
        time.sleep(0.05)  # the main thread may have a few lines left until it waits
        os.kill(os.getpid(), number)
    threading.Thread(target=wait, daemon=True).start()
"""


def run_script(script: str) -> list[str]:
    """Run a script in its own process, which must exit without errors, and return the lines that it prints."""
    command = [sys.executable, "-I", "-c", PREAMBLE + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000 if SLOW else 100)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()
