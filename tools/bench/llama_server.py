"""llama-server, llama.cpp's own server: built from the pinned sources with the patches for AMX, started, and called.

With its MTP drafting it is the peer of pymtp in benchmarks.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_build
from serving import free_port, served


class ServerError(Exception):
    """The server refused a request. The message is its answer."""


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt.

    seconds: from the first token, which the prefill yields, to the last. waited: seconds from the request to the first
    token. read, cached: tokens of the prompt that were prefilled, and that came from the cache. drafted, accepted:
    numbers of drafts.
    """

    token_ids: list[int]
    seconds: float
    waited: float
    read: int
    cached: int
    drafted: int
    accepted: int


def build(*, patched: bool = False) -> Path:
    """Build llama-server. Return the path of the program. See `llama_build.build`."""
    return llama_build.build("llama-server", ("common/", "scripts/ui-assets.cmake", "tools/"), patched=patched)


class Server:
    """A running server, its URL and its process id."""

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
        """Continue a prompt of token ids by n tokens without end tokens. Raises ServerError.

        temperature: 0 takes the likeliest token; else one of the 40 likeliest is sampled. cache: reuse the cache of
        earlier prompts, and add this one. user: the beginning of a user's message, where the server makes checkpoints;
        its chat endpoint finds it with the template.
        """
        request = {
            "prompt": list(prompt),
            "n_predict": n,
            "ignore_eos": True,
            # top_k with k = 1 is the cheapest greedy sampler
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


@contextmanager
def start(program: Path, model: Path, *, parallel: int = 1, **options: str | int) -> Iterator[Server]:
    """Start a server in a process of its own, and stop it at the end.

    parallel: slots, which share ctx_size. options: its long options, with "_" for "-", and "" for options without a
    value. Prompts are not cached unless options say so. Raises NotServedError if it does not start.
    """
    all_options = {
        "host": "127.0.0.1",
        "port": free_port(),
        "parallel": parallel,
        "fit": "off",
        "cache_ram": 0,
        "ctx_checkpoints": 0,
        **options,
    }
    flags = [
        word for name, value in all_options.items() for word in (f"--{name.replace('_', '-')}", str(value)) if word
    ]
    url = f"http://127.0.0.1:{all_options['port']}"
    command = [program, "--model", model, "--offline", "--no-ui", *flags]
    with served(command, lambda log: True if is_ready(url) else None) as (pid, _):
        yield Server(url, pid)


def is_ready(url: str) -> bool:
    """Tell whether the server at a URL has loaded its model."""
    try:
        with urllib.request.urlopen(url + "/health"):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False
