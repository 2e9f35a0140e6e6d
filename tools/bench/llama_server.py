"""llama-server, llama.cpp's own server, from the pinned sources and two patches that AMX needs: built, started, asked.

With its MTP drafting it is the runtime that pymtp's rounds are measured against.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_build

START_SECONDS = 120.0  # reading a large file from a cold disk takes this long


class ServerError(Exception):
    """The server did not start, or refused a request: what it said."""


@dataclass(frozen=True)
class Answer:
    """What came of one prompt. seconds: from the first token, which the prompt brings, to the last. waited: from the
    request to the first token, in seconds. read, cached: tokens of the prompt that were computed, and that were there.
    drafted, accepted: tokens drafted, and those of them that were kept."""

    token_ids: list[int]
    seconds: float
    waited: float
    read: int
    cached: int
    drafted: int
    accepted: int


def build(*, patched: bool = False) -> Path:
    """Builds llama-server; returns the program. See `llama_build.build`."""
    return llama_build.build("llama-server", ("common/", "scripts/ui-assets.cmake", "tools/"), patched=patched)


class Server:
    """A server that answers at `url`, and its process."""

    def __init__(self, url: str, pid: int) -> None:
        self._url, self.pid = url, pid

    def complete(
        self,
        prompt: Sequence[int],
        n: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        cache: bool = False,
        user: str | None = None,
    ) -> Answer:
        """The continuation of token ids: n tokens, no end token among them. Raises ServerError.

        temperature: 0 takes the likeliest token; else one of the 40 likeliest is sampled. cache: go on from what was
        read before, and keep it. user: what a user's message begins with, where checkpoints are taken; its own
        endpoint for chats says that by the template.
        """
        request = {
            "prompt": list(prompt),
            "n_predict": n,
            "ignore_eos": True,
            # greedy: the cheapest way to the likeliest token
            "samplers": ["top_k", "temperature"] if temperature else ["top_k"],
            "top_k": 40 if temperature else 1,
            "temperature": temperature,
            "seed": seed,
            "cache_prompt": cache,
            "return_tokens": True,
        }
        if user is not None:
            request["message_delimiters"] = [{"role": "user", "delimiter": user}]
        started = time.perf_counter()
        answer = self._post("/completion", request)
        timings = answer["timings"]
        seconds = timings["predicted_ms"] / 1e3
        return Answer(
            answer["tokens"],
            seconds,
            time.perf_counter() - started - seconds,
            timings["prompt_n"],
            timings["cache_n"],
            timings.get("draft_n", 0),
            timings.get("draft_n_accepted", 0),
        )

    def _post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, json.dumps(content).encode(), headers)
        try:
            with urllib.request.urlopen(request) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as error:
            raise ServerError(error.read().decode()) from error

    def ready(self) -> bool:
        """Whether the model is loaded."""
        try:
            with urllib.request.urlopen(self._url + "/health"):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False


@contextmanager
def start(program: Path, model: Path, *, parallel: int = 1, **options: str | int) -> Iterator[Server]:
    """A server in a process of its own; stopped at the end.

    parallel: requests at a time, which share ctx_size. options: its long options, "_" for "-"; those without a value
    have "". Prompts are not kept unless they say so. Raises ServerError when it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {"cache_ram": 0, "ctx_checkpoints": 0} | options
    flags = [word for name, value in kept.items() for word in (f"--{name.replace('_', '-')}", str(value)) if word]
    fixed = [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--parallel",
        str(parallel),
        "--fit",
        "off",
        "--offline",
        "--no-ui",
    ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([program, "--model", model, *fixed, *flags], stdout=log, stderr=log)
        try:
            server = Server(f"http://127.0.0.1:{port}", process.pid)
            deadline = time.monotonic() + START_SECONDS
            while not server.ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise ServerError(f"llama-server does not start:\n{log.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.02)
            yield server
        finally:
            process.terminate()
            process.wait()
