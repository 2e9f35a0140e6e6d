"""Starts `pymtp serve` for an example, and stops it at the end. Other examples import it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Thread


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
    # -I: Python does not look for pymtp in the current folder, where its sources may lie
    command = [sys.executable, "-I", "-m", "pymtp", "serve", "--port", "0", "-c", "4096"]
    command += ["-m", arguments.model] if arguments.model else []
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        lines = _shown(server.stderr)
        url = next((found[1] for line in lines if (found := re.search(r" serving url=(\S+)", line))), None)
        if url is None:
            sys.exit("The server did not start.")
        Thread(target=deque, args=[lines, 0], daemon=True).start()  # reads on: a full pipe would stop the server
        yield f"{url}/v1"
    finally:
        server.terminate()
        server.wait()


def _shown(log: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a server's log, and show those that a user has to see."""
    for line in log:
        if " INFO " not in line:
            sys.stderr.write(line)
        yield line
