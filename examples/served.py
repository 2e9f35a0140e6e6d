"""Starts `pymtp serve` for an example, and stops it at the end. Other examples import it."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen


def read_arguments(description: str | None) -> argparse.Namespace:
    """Read the arguments of an example: a model, or the URL of a server that runs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file, or hf:OWNER/NAME:Q4_K_M; the default is the shipped model")
    parser.add_argument("--base-url", help="a server that runs, such as http://127.0.0.1:8080/v1")
    return parser.parse_args()


@contextmanager
def served(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the base URL of the server that was named, or else start one on a free port."""
    if arguments.base_url:
        yield arguments.base_url
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # -I: Python does not look for pymtp in the current folder, where its sources may lie
    command = [sys.executable, "-I", "-m", "pymtp", "serve", "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen([*command, "-c", "4096", *(["-m", arguments.model] if arguments.model else [])])
    try:
        while not _is_ready(port):
            if server.poll() is not None:
                sys.exit("The server did not start.")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health"):
            return True
    except OSError:  # not listening yet, or 503 while the model is loaded
        return False
