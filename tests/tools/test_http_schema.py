"""Tests of the server's schema: a short run of tools/checks/http_schema.py in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parent.parent.parent / "tools" / "checks" / "http_schema.py"


def test_answers_match_the_schema() -> None:
    options = ["--examples", "6", "--seed", "3", "--phases", "fuzzing", "--at-least", "100"]
    run = subprocess.run([sys.executable, str(TOOL), *options], capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "requests, seed 3: as the schema says" in run.stdout
