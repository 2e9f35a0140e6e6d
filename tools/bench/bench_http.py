"""What HTTP costs: tokens a second of streaming clients, against the same requests on the engine without HTTP.

    pip install '.[server]'
    python tools/bench/bench_http.py demo:8:1500
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_http.py build/0.8b-q4_0.gguf:8:64

A case is MODEL:CLIENTS:TOKENS:TEMPERATURE, where "demo" is the shipped model and TEMPERATURE may be left out: greedy.
One side is `pymtp serve` with as many clients that stream, all at once, /v1/chat/completions or /v1/completions. They
are one loop over their sockets in a process of its own, which reads and keeps what comes, and looks at it afterwards.
The other side is one call of LLM.generate with all prompts, in a process that does nothing else. Both draft by "auto",
with the same threads and context, and keep no prompts. What counts is the time from the first byte that is sent, or the
call, to the end of the last text, prompts included.

Every measurement is a fresh server or process, warmed up with as many requests. They come in rounds, one of each kind,
in alternating order; the ratio within a round is what counts.
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
FILTERS: dict[str, Any] = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}  # APIs and SamplingParams have other defaults
WARM_UP = 16  # tokens of each request
PAGE = 256  # tokens that contexts are rounded up to
PROMPT_CHARACTERS = 160
PROMPT_TOKENS = 128  # at most


@dataclass(frozen=True)
class Case:
    """What both sides are given."""

    model: Path
    clients: int
    tokens: int
    temperature: float
    threads: int

    @classmethod
    def read(cls, text: str, threads: int) -> Case:
        """ "demo:8:256:0.7". Raises InvalidRequestError for what is no case."""
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
        """Tokens that one text has room for."""
        return -(-(PROMPT_TOKENS + self.tokens) // PAGE) * PAGE

    @property
    def prompts(self) -> list[str]:
        """One of each client."""
        return [text[:PROMPT_CHARACTERS] for text in held_out_prompts(self.clients)]

    def __str__(self) -> str:
        heat = f"T = {self.temperature:g}" if self.temperature else "greedy"
        return f"{self.model.name}, {self.clients} clients, {self.tokens} tokens each, {heat}"


@dataclass(frozen=True)
class Measurement:
    """One arm of a case. speed: tokens a second, of all requests. texts: their hash. chunks, bytes: of all answers."""

    speed: float
    tokens: int
    seconds: float
    texts: str
    chunks: int = 0
    bytes: int = 0


def measure_engine(case: Case, api: Api) -> Measurement:
    """One run without HTTP. To be run in a process of its own."""
    with LLM(case.model, n_ctx=case.n_ctx, n_seq_max=case.clients, n_threads=case.threads, cache_prompt=False) as llm:
        prompts = [Chat([{"role": "user", "content": text}]) if api == "chat" else text for text in case.prompts]

        def params(n: int) -> list[SamplingParams]:
            alike: dict[str, Any] = {"temperature": case.temperature, "ignore_eos": True, **FILTERS}
            return [SamplingParams(n, seed=i, **alike) for i in range(case.clients)]

        llm.generate(prompts, params(WARM_UP))
        started = time.perf_counter()
        done = llm.generate(prompts, params(case.tokens))
        seconds = time.perf_counter() - started
    n = sum(len(completion.token_ids) for completion in done)
    return Measurement(n / seconds, n, seconds, hashed([completion.text for completion in done]))


def measure_http(case: Case, api: Api) -> Measurement:
    """One run of a server, asked by this process."""
    warm_up, contents = bodies(case, api, WARM_UP), bodies(case, api, case.tokens)
    options = {"ctx": case.n_ctx, "n_seq_max": case.clients, "threads": case.threads, "cache": 0}
    with serve(case.model, **options) as server:
        ask(server.host, server.port, warm_up, PATHS[api])
        started = time.perf_counter()
        answers = ask(server.host, server.port, contents, PATHS[api])
        seconds = time.perf_counter() - started
    n = sum(map(completion_tokens, answers))
    size = sum(map(len, answers))
    chunks = [[json.loads(data) for data in re.findall(rb"^data: (\{.*)", answer, re.MULTILINE)] for answer in answers]
    texts = hashed(["".join(map(text_of, of_one)) for of_one in chunks])
    return Measurement(n / seconds, n, seconds, texts, sum(map(len, chunks)), size)


def bodies(case: Case, api: Api, n: int) -> list[bytes]:
    """The requests of all clients."""
    found = []
    for i, text in enumerate(case.prompts):
        prompt = {"messages": [{"role": "user", "content": text}]} if api == "chat" else {"prompt": text}
        more = {
            "model": "m",
            "max_tokens": n,
            "temperature": case.temperature,
            "seed": i,
            "ignore_eos": True,
            **FILTERS,
        }
        streams = {"stream": True, "stream_options": {"include_usage": True}}
        found.append(json.dumps(prompt | more | streams).encode())
    return found


def ask(host: str, port: int, contents: Sequence[bytes], path: str) -> list[bytes]:
    """All requests at once, each on a connection of its own; what came back, headers and all, once the last is done."""
    found: list[list[bytes]] = [[] for _ in contents]
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
                found[key.data].append(data)
                if not data:
                    selector.unregister(client)
                    client.close()
    return [b"".join(parts) for parts in found]


def completion_tokens(answer: bytes) -> int:
    """Of a stream's usage. Raises ValueError where it did not come to its end."""
    told = re.findall(rb'"completion_tokens": ?(\d+)', answer)
    if not told or b"data: [DONE]" not in answer[-200:]:
        raise ValueError(f"no whole answer: {answer[-2000:].decode(errors='replace')}")
    return int(told[-1])


def text_of(chunk: dict[str, Any]) -> str:
    """Of a chat, or a completion."""
    choices = chunk["choices"]
    return "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)


def hashed(texts: Sequence[str]) -> str:
    return sha256(json.dumps(texts).encode()).hexdigest()


def measure(case: Case, n: int, apis: Sequence[Api]) -> list[dict[str, Measurement]]:
    """n rounds of the arms. Says on stderr how it goes. Raises ValueError where the first API has other texts than the
    engine, which is asked for the same."""
    arms = {ENGINE: partial(in_a_process, measure_engine, case, apis[0])}
    arms |= {api: partial(measure_http, case, api) for api in apis}
    found = []
    for measured in rounds(arms, n):
        if measured[apis[0]].texts != measured[ENGINE].texts:
            raise ValueError(f"{apis[0]} has other texts than the engine")
        found.append(measured)
        said = ", ".join(f"{arm} {m.speed:.1f}/s" for arm, m in measured.items())
        screen.print(f"{case}, round {len(found)} of {n}: {said}")
    return found


def summary(found: Sequence[dict[str, Measurement]]) -> dict[str, Any]:
    """Medians by arm, and of the ratio to the engine within a round."""
    ratios = {arm: [each[arm].speed / each[ENGINE].speed for each in found] for arm in found[0] if arm != ENGINE}
    return {
        "median_tokens_per_second": {arm: statistics.median(each[arm].speed for each in found) for arm in found[0]},
        "median_ratio": {arm: statistics.median(several) for arm, several in ratios.items()},
        "ratios": ratios,
    }


def table(case: Case, found: Sequence[dict[str, Measurement]]) -> Table:
    """A line for each arm."""
    told = summary(found)
    lines = Table("", "tokens/s", "of the engine's", "range", "tokens a chunk", title=str(case))
    for column in lines.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for arm, median in told["median_tokens_per_second"].items():
        ratios = told["ratios"].get(arm, [1.0])
        chunks = statistics.median(each[arm].tokens / max(1, each[arm].chunks) for each in found)
        lines.add_row(
            arm,
            f"{median:.1f}",
            f"{statistics.median(ratios):.3f}",
            f"{min(ratios):.3f} … {max(ratios):.3f}",
            f"{chunks:.1f}" if arm in told["ratios"] else "",
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
            found = measure(case, pairs, list(PATHS))
            Console(highlight=False).print(table(case, found))
            measured = [{arm: asdict(m) for arm, m in each.items()} for each in found]
            results.append(asdict(case) | {"model": case.model.name} | summary(found) | {"rounds": measured})
            if output is not None:  # after each case: what is done is not lost
                record = {"bench": "HTTP", "cases": results, "machine": machine(), "build": build_info()}
                output.write_text(json.dumps(record, indent=1) + "\n")
    except (NotServedError, PymtpError, ValueError) as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
