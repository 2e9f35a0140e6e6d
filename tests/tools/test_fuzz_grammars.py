"""Tests of odd grammars: a short run of tools/checks/fuzz_grammars.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parent.parent.parent / "tools" / "checks" / "fuzz_grammars.py"


def test_odd_grammars_and_schemas_neither_crash_nor_hang() -> None:
    done = subprocess.run([sys.executable, TOOL, "-n", "400", "--seed", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "400 texts" in done.stdout
    assert "0 batches failed" in done.stdout
