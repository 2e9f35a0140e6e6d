"""Tests of the server's schema: a short run of Schemathesis with the check in tools/checks/schemathesis_hooks.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT
from helpers.servers import Server

from pymtp.server.settings import ServerSettings

HOOKS = ROOT / "tools" / "checks" / "schemathesis_hooks.py"


def test_answers_match_the_schema(tmp_path: Path) -> None:
    server = Server(ServerSettings(api_keys=("secret",)), n_ctx=128, n_seq_max=8).ready()
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HOOKS.with_name("schemathesis.toml"))]
    command += ["run", f"{server.url}/openapi.json", "--header", "Authorization: Bearer secret", "--no-color"]
    command += ["--phases", "fuzzing", "--max-examples", "1", "--seed", "3"]
    server.app.openapi()  # made now, since Schemathesis waits ten seconds at most
    hooks = os.environ | {"SCHEMATHESIS_HOOKS": str(HOOKS)}
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=tmp_path, env=hooks)
    finally:
        server.close()
    assert run.returncode == 0, run.stdout + run.stderr
    made = re.search(r"(\d+) generated", run.stdout)
    assert made is not None
    assert int(made[1]) >= 50
