"""Counts the tokens that a server under load changes: texts over HTTP against those of LLM.generate.

    pip install '.[server]' typer
    python tools/checks/http_same_text.py --tokens 50000

Many clients request chats and completions from a server: with all kinds of sampling, depths, grammars, stop strings and
up to three texts at once, as streams and as whole responses. Some read slowly, some disconnect. Each request is then
repeated on an LLM with one sequence, without drafts, prefix cache and other requests. Texts, finish reasons and numbers
of tokens must be the same; for an abandoned request, the beginning. /v1/responses and /v1/messages have no seed: they
are requested greedily.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from http_requests import PATHS, Api
from http_wire import Answer, Connection
from rich.console import Console

from pymtp import LLM, Completion, SamplingParams, build_info
from pymtp.bench.machine import machine
from pymtp.chat import Chat

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts
from pymtp_server import serve

LEAVE, SLOW = 0.1, 0.1  # shares of requests
LONGEST = 160  # maximum of tokens of a text
N_CTX = 512
GRAMMARS: Sequence[dict[str, Any]] = (
    {"grammar": 'root ::= [a-z ]+ "."'},
    {"grammar": 'root ::= ("def " [a-z_]+ "(" [a-z, ]* "):\\n" "    return " [a-z0-9 +]+ "\\n")+'},
    {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}},
)


@dataclass(frozen=True)
class TextRequest:
    """A request for a text.

    params: keywords of SamplingParams, and fields of the request with the same names.
    leaves: the number of events after which the client disconnects; None for never.
    """

    api: Api
    text: str
    params: dict[str, Any]
    stream: bool
    slow: bool
    leaves: int | None

    @property
    def body(self) -> bytes:
        """Return the body of the HTTP request."""
        content = dict(self.params) | {"model": "m", "stream": self.stream}
        if self.api in ("chat", "completions") and self.stream:
            content["stream_options"] = {"include_usage": True}
        if self.api == "completions":
            content["prompt"] = self.text
        elif self.api == "responses":
            content |= {"input": self.text, "max_output_tokens": content.pop("max_tokens")}
        else:
            content["messages"] = [{"role": "user", "content": self.text}]
        return json.dumps(content).encode()

    @property
    def prompt(self) -> str | Chat:
        """Return the prompt for an LLM."""
        return self.text if self.api == "completions" else Chat([{"role": "user", "content": self.text}])


@dataclass
class Received:
    """The response over HTTP.

    texts, reasons: by the number of the completion. tokens: of all completions; None for an abandoned request.
    """

    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    reasons: dict[int, str] = field(default_factory=dict)
    tokens: int | None = None
    error: str = ""


def make_requests(seed: int, texts: Sequence[str], apis: Sequence[Api]) -> Iterator[TextRequest]:
    """Yield random requests."""
    numbers = random.Random(seed)
    while True:
        api = numbers.choice(apis)
        seeded = api in ("chat", "completions")
        params: dict[str, Any] = {"max_tokens": numbers.randint(16, LONGEST), "temperature": 0.0}
        if seeded:
            params |= _sampling(numbers)
        text = numbers.choice(texts)
        start = numbers.randrange(max(1, len(text) - 300))
        stream = numbers.random() < 0.6
        leaves = numbers.randint(1, 5) if stream and numbers.random() < LEAVE / 0.6 else None
        slow = stream and numbers.random() < SLOW
        yield TextRequest(api, text[start : start + numbers.randint(1, 300)], params, stream, slow, leaves)


def _sampling(numbers: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {
        "temperature": numbers.choice((0.0, 0.3, 0.7, 1.0, 1.5)),
        "seed": numbers.randrange(2**63),
        "top_k": numbers.choice((0, 1, 40)),
        "top_p": numbers.choice((0.5, 0.95, 1.0)),
        "min_p": numbers.choice((0.0, 0.05)),
        "n": numbers.choice((1, 1, 1, 2, 3)),
    }
    if numbers.random() < 0.5:
        found["draft_tokens"] = numbers.randint(0, 7)
    if numbers.random() < 0.3:
        found |= {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1}
    if numbers.random() < 0.2:
        found["logit_bias"] = {"10": -2.0, "32": 0.5}
    if numbers.random() < 0.3:
        found["stop"] = numbers.choice(("return", ["\n\n", "self"], [" ="]))
    if numbers.random() < 0.5:
        found["ignore_eos"] = True
    return found | (numbers.choice(GRAMMARS) if numbers.random() < 0.1 else {})


async def send_all(address: tuple[str, int], requests: Sequence[TextRequest], clients: int) -> list[Received]:
    """Send all requests, so many at once, and return the responses."""
    found = [Received() for _ in requests]
    coming = iter(range(len(requests)))

    async def client() -> None:
        for i in coming:
            try:
                await _ask(address, requests[i], found[i])
            except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
                found[i].error = repr(error)

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


async def _ask(address: tuple[str, int], request: TextRequest, got: Received) -> None:
    to = await Connection(*address, small=request.slow).open()
    try:
        await to.send("POST", PATHS[request.api], request.body)
        status, headers = await to.head()
        data = b""
        async for part in to.parts(headers, 200 if request.slow else 2**16):
            data += part
            if request.slow and len(data) < 10_000:
                await asyncio.sleep(0.005)
            if request.leaves is not None and data.count(b"\n\n") >= request.leaves:
                break
    finally:
        to.leave()
    if status != 200:
        raise ValueError(f"{status} {data[:300]!r}")
    if request.stream:  # an abandoned stream may end within a line
        data = b"".join(line for line in data.splitlines(keepends=True) if line.endswith(b"\n"))
    answer = Answer(status, headers, data)
    for each in answer.events() if request.stream else [answer.json()]:
        _add_object(request.api, each, got)


def _add_object(api: Api, each: dict[str, Any], got: Received) -> None:
    """Add a chunk, an event, or a whole response."""
    if api in ("chat", "completions"):
        for choice in each["choices"]:
            message = choice.get("delta") or choice.get("message") or choice
            got.texts[choice["index"]] += message.get("text" if api == "completions" else "content") or ""
            if choice["finish_reason"] is not None:
                got.reasons[choice["index"]] = choice["finish_reason"]
        if each.get("usage"):
            got.tokens = each["usage"]["completion_tokens"]
    elif api == "responses":
        if each.get("type") == "response.output_text.delta":
            got.texts[0] += each["delta"]
        whole = each.get("response", {}) if "type" in each else each
        if whole.get("status") in ("completed", "incomplete"):
            got.texts[0] = "".join(part["text"] for item in whole["output"] for part in item.get("content", ()))
            got.reasons[0] = "stop" if whole["status"] == "completed" else "length"
            got.tokens = whole["usage"]["output_tokens"]
    else:
        if each["type"] == "content_block_delta":
            got.texts[0] += each["delta"]["text"]
        elif each["type"] == "message":
            got.texts[0] = "".join(block["text"] for block in each["content"])
        told = each if each["type"] == "message" else each.get("delta", {})
        if told.get("stop_reason"):
            got.reasons[0] = {"max_tokens": "length"}.get(told["stop_reason"], "stop")
            got.tokens = each["usage"]["output_tokens"]


@dataclass
class TextComparison:
    """The results. tokens: compared tokens. differing: tokens of differing texts."""

    requests: int = 0
    left: int = 0
    tokens: int = 0
    differing: int = 0
    by_api: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    differences: list[str] = field(default_factory=list)


def compare(llm: LLM, requests: Sequence[TextRequest], received: Sequence[Received]) -> TextComparison:
    """Repeat each request on the LLM, and compare the texts."""
    found = TextComparison()
    for number, (request, got) in enumerate(zip(requests, received, strict=True)):
        params = {key: value for key, value in request.params.items() if key != "draft_tokens"}
        if "logit_bias" in params:
            params["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
        done = llm.generate(request.prompt, SamplingParams(**params))
        texts = [done, *done.others]
        found.requests += 1
        found.left += got.tokens is None
        difference = got.error or _difference(texts, got, left=request.leaves is not None)
        n = sum(len(text.token_ids) for text in texts)
        if got.tokens is None and not difference:  # the tokens that arrived
            n = sum(len(llm.model.tokenize(text)) for text in got.texts.values())
        found.tokens += n
        found.by_api[request.api] += n
        if difference:
            found.differing += n
            found.differences.append(f"request {number}, {request.api}, {request.params}: {difference}")
    return found


def _difference(texts: Sequence[Completion], got: Received, *, left: bool) -> str:
    """Describe the difference; "" for none."""
    for i, text in enumerate(texts):
        mine = got.texts.get(i, "")
        if mine != text.text if got.tokens is not None else not text.text.startswith(mine):
            return f"text {i} is {mine!r}, and {text.text!r} by the LLM"
        reason = got.reasons.get(i)
        if reason != text.finish_reason and not (left and reason is None):
            return f"text {i} ends by {reason}, and by {text.finish_reason} by the LLM"
    n = sum(len(text.token_ids) for text in texts)
    if got.tokens is None:
        return "" if left else "it was not abandoned, and has no usage"
    return "" if got.tokens == n else f"{got.tokens} tokens, and {n} by the LLM"


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens to compare, at least.")] = 50_000,
    clients: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 40,
    places: Annotated[int, typer.Option(min=1, help="Texts that are generated at a time.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the requests; their times are not reproducible.")] = 0,
    output: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Compare texts over HTTP with those of an LLM; exit with status 1 if a token differs."""
    requests = make_requests(seed, held_out_prompts(12, 2000), list(PATHS))
    total, console = TextComparison(), Console(highlight=False)
    with (
        serve(model, n_seq_max=places, ctx=N_CTX, threads=1, cache=16) as server,
        LLM(model, n_ctx=N_CTX, n_threads=1, draft_tokens=0, cache_prompt=False) as llm,
    ):
        while total.tokens < tokens:
            group = [next(requests) for _ in range(10 * clients)]
            found = compare(llm, group, asyncio.run(send_all((server.host, server.port), group, clients)))
            total.requests += found.requests
            total.left += found.left
            total.tokens += found.tokens
            total.differing += found.differing
            total.differences += found.differences
            for api, n in found.by_api.items():
                total.by_api[api] += n
            console.print(f"{total.differing:,} of {total.tokens:,} tokens in {total.requests:,} requests differ")
    of_apis = ", ".join(f"{n:,} by {PATHS[api]}" for api, n in total.by_api.items())  # type: ignore[index]
    console.print(f"{of_apis}; {total.left} requests were left")
    for difference in total.differences[:10]:
        console.print(difference, soft_wrap=True)
    if output is not None:
        asked = {"tokens": tokens, "clients": clients, "places": places, "seed": seed}
        where = {"check": "same text over HTTP", "settings": asked, "machine": machine(), "build": build_info()}
        output.write_text(json.dumps(where | vars(total), indent=1) + "\n")
    if total.differences:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
