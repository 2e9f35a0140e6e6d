"""Measure the cost of HTTP: tokens/s of streaming clients, relative to the same requests without HTTP.

    pip install '.[server]'
    python tools/bench/bench_http.py demo:8:1500
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_http.py build/0.8b-q4_0.gguf:8:64

A case is MODEL:CLIENTS:TOKENS:TEMPERATURE, where "demo" is the shipped model and TEMPERATURE may be left out: greedy.
One side is `pymtp serve` with so many clients that stream /v1/chat/completions or /v1/completions at once. The clients
are one loop over their sockets in a process of its own, which stores the answers and parses them afterwards. The other
side is one call of LLM.generate with all prompts, in a process of its own. Both sides use draft_tokens="auto", the same
threads and context, and no prefix cache. The measured time goes from the first byte sent, or the call, to the end of
the last text, with the prefill.

Every measurement is a new server or process, warmed up with as many requests. Each round has one measurement of each
arm, in alternating order, and ratios are computed within a round.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from peer import in_a_process, rounds
from pymtp_server import NotServedError, serve
from rich.console import Console
from rich.table import Table

from pymtp import LLM, InvalidRequestError, PymtpError, SamplingParams, build_info
from pymtp.bench.machine import machine
from pymtp.chat import Chat
from pymtp.model.model import demo_model
from pymtp.native.cores import default_threads

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts

screen = Console(stderr=True, highlight=False)

Api = Literal["chat", "completions"]
PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
ENGINE = "engine"
FILTERS: dict[str, Any] = {
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
}  # the defaults of the APIs and of SamplingParams differ
WARM_UP = 16  # tokens of each request
PAGE = 256  # tokens that contexts are rounded up to
PROMPT_CHARACTERS = 160
PROMPT_TOKENS = 128  # at most


@dataclass(frozen=True)
class Case:
    """A case: the settings of both sides."""

    model: Path
    clients: int
    tokens: int
    temperature: float
    threads: int

    @classmethod
    def read(cls, text: str, threads: int) -> Case:
        """Parse a case such as "demo:8:256:0.7". Raises InvalidRequestError for any other text."""
        model, *numbers = text.split(":")
        file = demo_model() if model == "demo" else Path(model)
        try:
            clients, tokens, temperature = map(float, [*numbers, 0.0][:3])
        except ValueError as error:
            raise InvalidRequestError(f"{text!r} is no MODEL:CLIENTS:TOKENS or MODEL:…:TEMPERATURE") from error
        if not file.is_file():
            raise InvalidRequestError(f"there is no file {file}")
        return cls(file, int(clients), int(tokens), temperature, threads)

    @property
    def n_ctx(self) -> int:
        """Return the context of one text."""
        return -(-(PROMPT_TOKENS + self.tokens) // PAGE) * PAGE

    @property
    def prompts(self) -> list[str]:
        """Return one prompt for each client."""
        return [text[:PROMPT_CHARACTERS] for text in held_out_prompts(self.clients)]

    def __str__(self) -> str:
        temperature = f"T = {self.temperature:g}" if self.temperature else "greedy"
        return f"{self.model.name}, {self.clients} clients, {self.tokens} tokens each, {temperature}"


@dataclass(frozen=True)
class Measurement:
    """The measurement of one arm. speed: tokens/s of all requests. texts: their hash. chunks, bytes: of all answers."""

    speed: float
    tokens: int
    seconds: float
    texts: str
    chunks: int = 0
    bytes: int = 0


def measure_engine(case: Case, api: Api) -> Measurement:
    """Measure a run without HTTP. Call it in a new process."""
    with LLM(case.model, n_ctx=case.n_ctx, n_seq_max=case.clients, n_threads=case.threads, cache_prompt=False) as llm:
        prompts = [Chat([{"role": "user", "content": text}]) if api == "chat" else text for text in case.prompts]

        def params(n: int) -> list[SamplingParams]:
            shared: dict[str, Any] = {"temperature": case.temperature, "ignore_eos": True, **FILTERS}
            return [SamplingParams(n, seed=i, **shared) for i in range(case.clients)]

        llm.generate(prompts, params(WARM_UP))
        started = time.perf_counter()
        completions = llm.generate(prompts, params(case.tokens))
        seconds = time.perf_counter() - started
    n_tokens = sum(len(completion.token_ids) for completion in completions)
    texts = hashed([completion.text for completion in completions])
    return Measurement(n_tokens / seconds, n_tokens, seconds, texts)


def measure_http(case: Case, api: Api) -> Measurement:
    """Measure a run of a server with clients in this process."""
    warm_up, contents = bodies(case, api, WARM_UP), bodies(case, api, case.tokens)
    options = {"ctx": case.n_ctx, "n_seq_max": case.clients, "threads": case.threads, "cache": 0}
    with serve(case.model, **options) as server:
        send_all(server.host, server.port, warm_up, PATHS[api])
        started = time.perf_counter()
        answers = send_all(server.host, server.port, contents, PATHS[api])
        seconds = time.perf_counter() - started
    n_tokens = sum(map(completion_tokens, answers))
    size = sum(map(len, answers))
    chunks = [[json.loads(data) for data in re.findall(rb"^data: (\{.*)", answer, re.MULTILINE)] for answer in answers]
    texts = hashed(["".join(map(text_of, answer_chunks)) for answer_chunks in chunks])
    return Measurement(n_tokens / seconds, n_tokens, seconds, texts, sum(map(len, chunks)), size)


def bodies(case: Case, api: Api, n: int) -> list[bytes]:
    """Return the request bodies of all clients."""
    requests = []
    for i, text in enumerate(case.prompts):
        prompt = {"messages": [{"role": "user", "content": text}]} if api == "chat" else {"prompt": text}
        options = {
            "model": "m",
            "max_tokens": n,
            "temperature": case.temperature,
            "seed": i,
            "ignore_eos": True,
            **FILTERS,
        }
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        requests.append(json.dumps(prompt | options | streaming).encode())
    return requests


def send_all(host: str, port: int, contents: Sequence[bytes], path: str) -> list[bytes]:
    """Send all requests at once, each on its own connection. Return the whole answers, with headers."""
    received: list[list[bytes]] = [[] for _ in contents]
    with selectors.DefaultSelector() as selector:
        for i, content in enumerate(contents):
            client = socket.create_connection((host, port))
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
            client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ, i)
        while selector.get_map():
            for key, _ in selector.select():
                client = key.fileobj  # type: ignore[assignment]
                data = client.recv(2**18)
                received[key.data].append(data)
                if not data:
                    selector.unregister(client)
                    client.close()
    return [b"".join(parts) for parts in received]


def completion_tokens(answer: bytes) -> int:
    """Return the completion tokens in a stream's usage. Raises ValueError for an incomplete stream."""
    counts = re.findall(rb'"completion_tokens": ?(\d+)', answer)
    if not counts or b"data: [DONE]" not in answer[-200:]:
        raise ValueError(f"no whole answer: {answer[-2000:].decode(errors='replace')}")
    return int(counts[-1])


def text_of(chunk: dict[str, Any]) -> str:
    """Return the text in a chunk of a chat or a completion."""
    choices = chunk["choices"]
    return "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)


def hashed(texts: Sequence[str]) -> str:
    return sha256(json.dumps(texts).encode()).hexdigest()


def measure(case: Case, n: int, apis: Sequence[Api]) -> list[dict[str, Measurement]]:
    """Measure n rounds of all arms. Print the progress on stderr.

    Raises ValueError if the texts of the first API differ from those of the engine, which gets the same prompts.
    """
    arms = {ENGINE: partial(in_a_process, measure_engine, case, apis[0])}
    arms |= {api: partial(measure_http, case, api) for api in apis}
    results = []
    for measured in rounds(arms, n):
        if measured[apis[0]].texts != measured[ENGINE].texts:
            raise ValueError(f"{apis[0]} has other texts than the engine")
        results.append(measured)
        speeds = ", ".join(f"{arm} {m.speed:.1f}/s" for arm, m in measured.items())
        screen.print(f"{case}, round {len(results)} of {n}: {speeds}")
    return results


def summary(results: Sequence[dict[str, Measurement]]) -> dict[str, Any]:
    """Return medians by arm, and the median ratio to the engine within a round."""
    ratios = {arm: [arms[arm].speed / arms[ENGINE].speed for arms in results] for arm in results[0] if arm != ENGINE}
    return {
        "median_tokens_per_second": {arm: statistics.median(arms[arm].speed for arms in results) for arm in results[0]},
        "median_ratio": {arm: statistics.median(values) for arm, values in ratios.items()},
        "ratios": ratios,
    }


def table(case: Case, results: Sequence[dict[str, Measurement]]) -> Table:
    """Make a table with a line for each arm."""
    medians = summary(results)
    lines = Table("", "tokens/s", "of the engine's", "range", "tokens a chunk", title=str(case))
    for column in lines.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for arm, median in medians["median_tokens_per_second"].items():
        ratios = medians["ratios"].get(arm, [1.0])
        chunks = statistics.median(arms[arm].tokens / max(1, arms[arm].chunks) for arms in results)
        lines.add_row(
            arm,
            f"{median:.1f}",
            f"{statistics.median(ratios):.3f}",
            f"{min(ratios):.3f} … {max(ratios):.3f}",
            f"{chunks:.1f}" if arm in medians["ratios"] else "",
        )
    return lines


def main(
    cases: Annotated[list[str], typer.Argument(help="MODEL:CLIENTS:TOKENS[:TEMPERATURE]", show_default=False)],
    pairs: Annotated[int, typer.Option("--pairs", "-r", min=1, help="Measurements of each kind.")] = 5,
    threads: Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")] = None,
    output: Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")] = None,
) -> None:
    """Compare streaming clients with the engine without HTTP."""
    results = []
    try:
        for case in [Case.read(text, threads or default_threads()) for text in cases]:
            measured_rounds = measure(case, pairs, list(PATHS))
            Console(highlight=False).print(table(case, measured_rounds))
            measured = [{arm: asdict(m) for arm, m in arms.items()} for arms in measured_rounds]
            results.append(asdict(case) | {"model": case.model.name} | summary(measured_rounds) | {"rounds": measured})
            if output is not None:  # after each case, so that no result is lost
                record = {"bench": "HTTP", "cases": results, "machine": machine(), "build": build_info()}
                output.write_text(json.dumps(record, indent=1) + "\n")
    except (NotServedError, PymtpError, ValueError) as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
