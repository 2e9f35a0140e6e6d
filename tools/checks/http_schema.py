"""Tests the server with requests made from its own schema: no response is a 500, and all responses fit the schema.

    pip install '.[server]' schemathesis typer
    python tools/checks/http_schema.py --examples 40 --seed 1

Schemathesis makes the requests: at the bounds of the schema, random ones within it and beyond it, and sequences that
use ids of earlier responses. All its checks are on. Two of them are adjusted:

- A body that the schema allows may be refused with 400 for its meaning: an invalid grammar, a prompt that is too long,
  a token outside the vocabulary. schema_hooks.py fails if such a body is refused for its types.
- 504 is no failure: a request may set its own timeout, even to a microsecond.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import httpx
import typer
import uvicorn

from pymtp import LLM
from pymtp.server.app import create_app
from pymtp.server.settings import ServerSettings

KEY = "secret"
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]
positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 504]
"""
LOADING = 60.0  # seconds that the shipped model may take to load


@contextmanager
def serving() -> Iterator[str]:
    """Serve the shipped model and yield the URL. The context is small, so that no text takes long."""
    app = create_app(
        ServerSettings(api_keys=(KEY,)), lambda: LLM(n_ctx=128, n_batch=256, n_ubatch=128, n_seq_max=8, n_threads=1)
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            end = time.monotonic() + LOADING
            while time.monotonic() < end and not _is_up(url):
                time.sleep(0.05)
            yield url
        finally:
            server.should_exit = True
            thread.join()


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def check(url: str, phases: str, examples: int, seed: int) -> tuple[int, int, str]:
    """Run Schemathesis: return its exit code, the number of requests, and its output."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        config.write_text(CONFIG)
        program = Path(sys.executable).parent / "schemathesis"
        command = [str(program), "--config-file", str(config), "run", f"{url}/openapi.json", "--continue-on-failure"]
        command += ["--header", f"Authorization: Bearer {KEY}", "--phases", phases, "--seed", str(seed)]
        command += ["--max-examples", str(examples), "--request-timeout", "60", "--workers", "1", "--no-color"]
        hooks = {"SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("schema_hooks.py"))}
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, **hooks})
    found = re.search(r"(\d+) generated", done.stdout)
    return done.returncode, int(found[1]) if found else 0, done.stdout + done.stderr


def main(
    examples: Annotated[int, typer.Option(help="Random requests for each path and method.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the random requests.")] = 1,
    phases: Annotated[
        str, typer.Option(help="Phases of Schemathesis, separated by commas.")
    ] = "examples,coverage,fuzzing,stateful",
    at_least: Annotated[int, typer.Option(help="Fail where fewer requests were made.")] = 2000,
) -> None:
    with serving() as url:
        code, made, said = check(url, phases, examples, seed)
    typer.echo(said)
    typer.echo(f"{made} requests, seed {seed}: {'as the schema says' if code == 0 else 'findings above'}")
    raise typer.Exit(1 if code or made < at_least else 0)


if __name__ == "__main__":
    typer.run(main)
