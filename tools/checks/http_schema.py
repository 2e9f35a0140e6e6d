"""Requests made from the server's own schema: no answer is a 500, and none is what the schema does not say.

    pip install '.[server]' schemathesis typer
    python tools/checks/http_schema.py --examples 40 --seed 1

Schemathesis makes the requests: at the bounds of the schema, random ones within it and beyond it, and sequences that
use what earlier answers named. All its checks are on. Two are told more than they know:

- A body that the schema allows may be refused with 400 for what it means: a grammar that is none, a prompt that is too
  long, a token outside the vocabulary. schema_hooks.py fails where such a body is refused for its types.
- 504 is no failure: a request may say itself how long it may take, a microsecond too.
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
    """The address of a server of the shipped model. Its contexts are small, so that no text takes long."""
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
    """The exit code, how many requests were made, and what was said."""
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
    examples: Annotated[int, typer.Option(help="Random requests of each path and method.")] = 40,
    seed: Annotated[int, typer.Option(help="Of the random requests.")] = 1,
    phases: Annotated[str, typer.Option(help="Of Schemathesis, with commas.")] = "examples,coverage,fuzzing,stateful",
    at_least: Annotated[int, typer.Option(help="Fail where fewer requests were made.")] = 2000,
) -> None:
    with serving() as url:
        code, made, said = check(url, phases, examples, seed)
    typer.echo(said)
    typer.echo(f"{made} requests, seed {seed}: {'as the schema says' if code == 0 else 'findings above'}")
    raise typer.Exit(1 if code or made < at_least else 0)


if __name__ == "__main__":
    typer.run(main)
