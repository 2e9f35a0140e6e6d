"""Claims about two machines, which are two nodes on this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/checks/ray_rows.py"


@pytest.mark.timeout(420)
def test_rows_are_complete_and_those_of_llm_generate_whoever_dies_and_not_read_twice(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as out, (tmp_path / "log").open("w+") as log:  # pipes would stay open
        command = [sys.executable, TOOL, "--rows", "96"]
        done = subprocess.run(command, cwd=tmp_path, stdout=out, stderr=log, stdin=subprocess.DEVNULL, timeout=400)
        out.seek(0), log.seek(0)
        said, logged = out.read(), log.read()[-5000:]
    assert said, logged
    found = json.loads(said.splitlines()[-1])
    assert found["killed"] == {"died": True, "nodes": 2, "rows": 96, "wrong": 0}, logged
    assert found["resumed"] == found["resumed"] | {"failed": True, "read_twice": 0, "wrong": 0}, logged
    assert done.returncode == 0, logged
