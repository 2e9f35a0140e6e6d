"""Tests of odd requests: a short run of tools/checks/fuzz_requests.py in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parent.parent.parent / "tools" / "checks" / "fuzz_requests.py"


def test_odd_requests_end_no_process_and_change_no_later_answer() -> None:
    run = subprocess.run(
        [sys.executable, str(TOOL), "--requests", "300", "--seed", "4", "--jobs", "1"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "in 25 rounds, seed 4: 0 findings" in run.stdout
