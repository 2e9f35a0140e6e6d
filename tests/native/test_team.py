"""Tests of the thread team: an aborted graph is not timed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two threads need two cores")
def test_aborted_graph_is_not_timed(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "this test needs a C++ compiler"
    program, kernels = tmp_path / "team", ROOT / "pymtp/native/kernels"
    sources = [kernels / f"threads/{name}.cpp" for name in ("team", "team_size", "quota", "free_cores", "sleep")]
    flags = ["-std=c++17", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{kernels}"]
    subprocess.run([compiler, *flags, ROOT / "tests/native/team.cpp", *sources, "-o", program], check=True)
    for says in (False, True):
        done = subprocess.run([program, str(int(says))], capture_output=True, text=True, check=True)
        with_one, counted = map(int, done.stdout.split())
        assert with_one > 0
        assert (counted == 0) == says
