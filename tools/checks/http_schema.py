"""Tests the server with requests made from its own schema: no response is a 500, and all responses fit the schema.

    pip install '.[server]' schemathesis typer
    python tools/checks/http_schema.py --examples 40 --seed 1

Schemathesis makes the requests: at the bounds of the schema, random ones within it and beyond it, and sequences that
use ids of earlier responses. All its checks are on. Two of them are adjusted:

- A body that the schema allows may be refused with 400 for its meaning: an invalid grammar, a prompt that is too long,
  a token outside the vocabulary. It must not be refused for its types: Schemathesis loads this file for that check.
- 504 is no failure: a request may set its own timeout, even to a microsecond.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import schemathesis
import typer
from common import Seed, run_command
from pymtp_server import serve
from schemathesis import Case, CheckContext, GenerationMode, Response

KEY = "secret"
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]
positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 504]
"""
OF_TYPES = {"invalid_type", "invalid_json", "invalid_content_type"}
SMALL = {"ctx": 128, "n_seq_max": 8, "threads": 1}  # so that no text takes long


@schemathesis.check  # type: ignore[untyped-decorator]
def refused_for_its_meaning(ctx: CheckContext, response: Response, case: Case) -> None:
    """Check that a body that the schema allows is not refused for its types."""
    if response.status_code != 400 or case.meta is None or case.meta.generation.mode != GenerationMode.POSITIVE:
        return
    error = response.json()["error"]
    assert error.get("code") not in OF_TYPES, f"the schema allows what the server refuses: {error['message']}"


def check(url: str, phases: str, examples: int, seed: int) -> tuple[int, int, str]:
    """Run Schemathesis: return its exit code, the number of requests, and its output."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        config.write_text(CONFIG)
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{url}/openapi.json"]
        command += ["--header", f"Authorization: Bearer {KEY}", "--phases", phases, "--seed", str(seed)]
        command += [
            "--max-examples",
            str(examples),
            "--request-timeout",
            "60",
            "--workers",
            "1",
            "--no-color",
            "--continue-on-failure",
        ]
        hooks = os.environ | {"SCHEMATHESIS_HOOKS": __file__, "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=hooks)
    found = re.search(r"(\d+) generated", done.stdout)
    return done.returncode, int(found[1]) if found else 0, done.stdout + done.stderr


def main(
    examples: Annotated[int, typer.Option(help="Random requests for each path and method.")] = 40,
    seed: Seed = 1,
    phases: Annotated[str, typer.Option(help="Phases of Schemathesis.")] = "examples,coverage,fuzzing,stateful",
    at_least: Annotated[int, typer.Option(help="Fail where fewer requests were made.")] = 2000,
) -> None:
    """Test the server with the shipped model; exit with status 1 on any failure."""
    with serve(**SMALL, api_key=KEY) as server:
        code, made, said = check(f"http://{server.host}:{server.port}", phases, examples, seed)
    typer.echo(said)
    typer.echo(f"{made} requests, seed {seed}: {'as the schema says' if code == 0 else 'findings above'}")
    raise typer.Exit(1 if code or made < at_least else 0)


if __name__ == "__main__":
    run_command(main)
