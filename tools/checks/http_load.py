"""Loads a server with hundreds of clients, and checks that each request is answered and nothing leaks.

    pip install '.[server]' typer
    python tools/checks/http_load.py --requests 10000 --clients 300

Each client makes one request after the other: all APIs, streams and whole responses, tools, two texts at once. A tenth
of the requests is abandoned, by closing or resetting the connection, now and then many at once; a tenth is over a
limit or invalid (http_requests.py); some responses are read a few bytes at a time. There are more clients than slots
and queue places, so some get 429. Every request must end with its response or the right error before a deadline.
Afterwards, no request runs or waits, a new request is served, and the worker's memory in the last third of the time is
that of the second third.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import typer
from common import SCREEN, ModelFile, Output, Seed, run_command, write_json
from helpers.http_wire import Connection
from http_requests import PATHS, HttpRequest, HttpRequestGenerator, Limits, Received, find_problem
from makers.new_texts import new_prompts
from pymtp_server import serve

from pymtp import LLM, SamplingParams

LEAVES, REFUSED, SLOW = 0.1, 0.1, 0.05  # shares of all requests
CRASH = 8  # streams that a client resets at once
DEADLINE = 120.0  # seconds for a request
FREE = 30.0  # seconds after the last request until nothing runs or waits
MOMENTS = (0.0, 0.0, 0.003, 0.02, 0.1)  # seconds after which a client disconnects
LATER = 1.0  # maximum seconds that a client waits after a 429
PAUSES = 60  # pauses of a slow reader
SMALL = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]  # receive buffers of a slow reader


@dataclass
class Report:
    """The results of all requests.

    ends: counts by how requests ended. wrong: descriptions of errors. longest: seconds of the slowest request.
    resident: bytes of the worker's memory, with the share of requests that had ended.
    answered: the texts to compare: requests, their responses or what of them arrived, and whether the client left.
    """

    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wrong: list[str] = field(default_factory=list)
    answered: list[tuple[HttpRequest, httpx.Response, bool]] = field(default_factory=list)
    longest: float = 0.0
    seconds: float = 0.0
    resident: list[tuple[float, int]] = field(default_factory=list)

    def resident_by(self, n: int) -> list[int]:
        """Return the median bytes of the worker in each n-th of the requests, 0 if there was no measurement."""
        parts = [[size for at, size in self.resident if i / n <= at < (i + 1) / n] for i in range(n)]
        return [int(median(part)) if part else 0 for part in parts]


class Load:
    """The clients of one server."""

    def __init__(
        self, url: str, limits: Limits, *, requests: int, seed: int = 0, worker: int | None = None, most: int = 24
    ) -> None:
        """Set up the clients. worker: the process whose memory is measured. most: the maximum of tokens of a text."""
        self.report = Report()
        self._url, self._limits, self._worker, self._most = url, limits, worker, most
        self._texts = new_prompts(12, 1000)
        self._requests, self._left, self._seed = requests, requests, seed

    async def play(self, clients: int, victims: int) -> Report:
        """Make all requests. victims: how many clients crash with several streams."""
        begun = time.monotonic()
        watching = asyncio.create_task(self._watch())
        every = self._requests / (victims + 1)
        tasks = [asyncio.create_task(self._client(i)) for i in range(clients)]
        tasks += [asyncio.create_task(self._crash(i, self._requests - int((i + 1) * every))) for i in range(victims)]
        await asyncio.gather(*tasks)
        watching.cancel()
        self.report.seconds = time.monotonic() - begun
        return self.report

    async def _client(self, number: int) -> None:
        numbers = random.Random(f"{self._seed} {number}")
        generator = HttpRequestGenerator(numbers, self._limits, list(PATHS), self._texts)
        async with new_client(self._url) as usual, new_client(self._url, SMALL) as slow:
            while self._left > 0:
                self._left -= 1
                begun, kind = time.monotonic(), numbers.random()
                request = generator.refused() if LEAVES <= kind < LEAVES + REFUSED else None
                request = request or generator.good(400 if kind < LEAVES else self._most)
                try:
                    if kind < LEAVES:
                        await asyncio.wait_for(self._leave(request, numbers), DEADLINE)
                    elif kind > 1 - SLOW:
                        await asyncio.wait_for(self._answer(slow, request, numbers, slow=True), DEADLINE)
                    else:
                        await asyncio.wait_for(self._answer(usual, request, numbers), DEADLINE)
                except TimeoutError:
                    self._wrong("no end within the deadline")
                except (OSError, httpx.HTTPError, ValueError) as error:
                    self._wrong(f"{error!r} ({request.kind} {request.path}, {'a' if request.stream else 'no'} stream)")
                self.report.longest = max(self.report.longest, time.monotonic() - begun)

    async def _answer(
        self, client: httpx.AsyncClient, request: HttpRequest, numbers: random.Random, *, slow: bool = False
    ) -> None:
        """Send a request, read its response, and check it."""
        if request.kind == "body too large":  # it is refused before httpx has sent it, and reads
            raw = await (await self._connection()).ask("POST", request.path, request.body, request.headers)
            whole = httpx.Response(raw.status, headers=raw.headers, content=raw.body)
        else:
            parts = []
            async with client.stream(**request.sent) as answer:
                async for part in answer.aiter_raw(numbers.choice((1, 16, 256)) if slow else None):
                    parts.append(part)
                    if slow and len(parts) < PAUSES:
                        await asyncio.sleep(numbers.choice((0.001, 0.01, 0.05)))
            whole = httpx.Response(answer.status_code, headers=answer.headers, content=b"".join(parts))
        if wrong := find_problem(request, whole):
            self._wrong(wrong)
        elif whole.status_code == 429:
            self.report.ends["told to come later"] += 1
            await asyncio.sleep(numbers.uniform(0, LATER))
        else:
            self.report.ends["read slowly" if slow and whole.status_code == 200 else request.kind] += 1
            if whole.status_code == 200 and request.prompt is not None:
                self.report.answered.append((request, whole, False))

    async def _leave(self, request: HttpRequest, numbers: random.Random) -> None:
        """Send a request, and disconnect before or within its response, or in the middle of the request."""
        self.report.ends["left"] += 1
        if (way := numbers.random()) < 0.1:
            half = await self._connection()
            await half.send("POST", request.path, request.body, request.headers | {"Content-Length": "500000"})
            await asyncio.sleep(numbers.choice(MOMENTS))
            half.leave(rudely=True)
            return
        async with new_client(self._url) as client:
            if way < 0.4:
                sending = asyncio.create_task(client.send(client.build_request(**request.sent), stream=True))
                await asyncio.wait([sending], timeout=numbers.choice(MOMENTS))
                sending.cancel()
                with suppress(asyncio.CancelledError):
                    await (await sending).aclose()
                return
            data = b""
            async with client.stream(**request.sent) as answer:
                async for part in answer.aiter_raw(numbers.randint(1, 2000)):
                    data += part
                    if numbers.random() < 0.3:
                        break
                await asyncio.sleep(numbers.choice(MOMENTS))
                if numbers.random() < 0.5:
                    reset_when_closed(answer)
        if request.stream and answer.status_code == 200 and request.prompt is not None:
            whole_lines = httpx.Response(200, content=data[: data.rfind(b"\n") + 1])
            self.report.answered.append((request, whole_lines, True))

    async def _crash(self, number: int, when: int) -> None:
        """Reset several running streams at once. when: the number of remaining requests at that time."""
        while self._left > when:
            await asyncio.sleep(0.01)
        numbers = random.Random(f"{self._seed} crash {number}")
        generator = HttpRequestGenerator(numbers, self._limits, list(PATHS), self._texts)
        try:
            async with new_client(self._url) as client:
                asked = [client.build_request(**generator.good(400).sent) for _ in range(CRASH)]
                sending = asyncio.gather(*(client.send(one, stream=True) for one in asked))
                answers = await asyncio.wait_for(sending, DEADLINE)
                await asyncio.sleep(numbers.choice(MOMENTS))
                for answer in answers:
                    reset_when_closed(answer)
                await asyncio.gather(*(answer.aclose() for answer in answers))
        except (OSError, httpx.HTTPError) as error:  # TimeoutError is an OSError
            self._wrong(f"{error!r} before the crash")
        self.report.ends["reset at once"] += CRASH

    async def _connection(self) -> Connection:
        return await Connection(httpx.URL(self._url).host, httpx.URL(self._url).port or 80).open()

    def _wrong(self, words: str) -> None:
        self.report.ends["wrong"] += 1
        self.report.wrong.append(words)

    async def _watch(self) -> None:
        """Measure the worker's memory."""
        while self._worker is not None:
            with suppress(OSError):  # a dead worker shows in the responses
                pages = int(Path(f"/proc/{self._worker}/statm").read_text().split()[1])
                self.report.resident.append((1 - max(0, self._left) / self._requests, pages * 4096))
            await asyncio.sleep(0.1)


def new_client(url: str, options: Sequence[Any] = ()) -> httpx.AsyncClient:
    """Return a client without timeouts. options: of its sockets."""
    transport = httpx.AsyncHTTPTransport(verify=False, socket_options=[*options])
    return httpx.AsyncClient(base_url=url, transport=transport, timeout=None)


def reset_when_closed(answer: httpx.Response) -> None:
    """Close the connection by a reset, as if the process or its network had failed."""
    with suppress(OSError):  # it is closed already
        connection = answer.extensions["network_stream"].get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def left_behind(url: str, limits: Limits) -> str:
    """Describe requests that still run or wait, or the failure of a new request; "" for none."""
    end, asked = time.monotonic() + FREE, {"prompt": "def f(x):", "max_tokens": 8, "ignore_eos": True, "model": "m"}
    async with new_client(url) as client:
        client.headers["Authorization"] = f"Bearer {limits.key}"
        while True:
            text = (await client.get("/metrics")).text
            found = re.findall(r"^pymtp:num_requests_(running|waiting)\S* (\S+)$", text, re.MULTILINE)
            if sorted(found) == [("running", "0.0"), ("waiting", "0.0")]:
                break
            if time.monotonic() > end:
                return f"still there: {found}"
            await asyncio.sleep(0.05)
        answer = await client.post(PATHS["completions"], json=asked)
    return "" if answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 8 else f"then: {answer}"


Answered = Sequence[tuple[HttpRequest, httpx.Response, bool]]  # see Report


@dataclass
class Compared:
    """Requests of an API whose texts were compared with those of an LLM. differ: the tokens of differing texts."""

    requests: int = 0
    left: int = 0
    tokens: int = 0
    differ: int = 0


def compare(llm: LLM, answered: Answered, by_api: dict[str, Compared]) -> list[str]:
    """Repeat requests on an LLM, and describe the differences. Texts of clients that left need only begin alike."""
    differences = []
    for request, answer, left in answered:
        params = {key: value for key, value in request.params.items() if key != "draft_tokens"}
        if "logit_bias" in params:
            params["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
        got, done = Received.of(request, answer), llm.generate(request.prompt, SamplingParams(**params))
        texts, found = [done, *done.others], by_api[request.api]
        wrong, n = "", sum(len(text.token_ids) for text in texts)
        for i, text in enumerate(texts):
            mine, reason, whole = got.texts.get(i, ""), got.reasons.get(i), f"{text.reasoning or ''}{text.content}"
            if mine != whole if got.tokens is not None else not whole.startswith(mine):
                wrong = wrong or f"text {i} is {mine!r}, and {whole!r} by the LLM"
            if reason != text.finish_reason and not (left and reason is None):
                wrong = wrong or f"text {i} ends by {reason}, and by {text.finish_reason} by the LLM"
        if got.tokens != n and not (left and got.tokens is None):
            wrong = wrong or f"{got.tokens} tokens, and {n} by the LLM"
        if got.tokens is None:  # count the tokens that arrived
            n = sum(len(llm.model.tokenize(text)) for text in got.texts.values())
        found.requests += 1
        found.left += got.tokens is None
        found.tokens += n
        found.differ += max(1, n) if wrong else 0
        differences += [f"{request.api}, {request.params}: {wrong}"] if wrong else []
    return differences


def same_text(model: Path | None, tokens: int, seed: int) -> dict[str, dict[str, int]]:
    """Compare texts of a server under load with those of an LLM until there are enough tokens.

    The LLM has one sequence, no drafts and no prefix cache. Print the differences, and return a row for each API.
    """
    limits, by_api = Limits("a key", 512, 2**20), defaultdict[str, Compared](Compared)
    options = {"n_seq_max": 8, "max_body": 1, "ctx": limits.n_ctx, "cache": 16, "threads": 1}
    with (
        serve(model, **options, api_key=limits.key) as server,
        LLM(model, n_ctx=limits.n_ctx, n_threads=1, draft_tokens=0, cache_prompt=False) as llm,
    ):
        while sum(one.tokens for one in by_api.values()) < tokens:
            url = f"http://{server.host}:{server.port}"
            load = Load(url, limits, requests=400, seed=seed, most=160)
            report = asyncio.run(load.play(40, victims=0))
            for words in (*report.wrong, *compare(llm, report.answered, by_api)):
                SCREEN.print(words)
            by_api["no answer"].differ += len(report.wrong)
            seed += 1
    return {api: vars(one) for api, one in by_api.items()}


def main(
    model: ModelFile = None,
    requests: Annotated[int, typer.Option("--requests", "-r", min=30)] = 10_000,
    clients: Annotated[int, typer.Option(min=1)] = 300,
    places: Annotated[int, typer.Option(min=1, help="Texts at a time.")] = 8,
    threads: Annotated[int, typer.Option(min=1, help="Of the engine: few, as the clients are on this machine.")] = 1,
    seed: Seed = 0,
    growth: Annotated[float, typer.Option(help="Allowed growth of memory from the second third to the last.")] = 0.05,
    output: Output = None,
) -> None:
    """Load a server; exit with status 1 if anything is wrong."""
    limits = Limits("a key", 512, 2**20)
    options = {"n_seq_max": places, "max_queue": clients - 20, "max_body": 1, "ctx": limits.n_ctx, "cache": 16}
    with serve(model, **options, threads=threads, api_key=limits.key) as server:
        url, worker = f"http://{server.host}:{server.port}", server.worker
        load = Load(url, limits, requests=requests, seed=seed, worker=worker)
        report = asyncio.run(load.play(clients, requests // 400))
        behind = asyncio.run(left_behind(url, limits))
        if server.worker != worker:
            report.wrong.append("the worker is another one")
    _, second, last = report.resident_by(3)
    for words, n in sorted(report.ends.items(), key=lambda each: -each[1]):
        SCREEN.print(f"{n:>6} {words}")
    grown = last - second
    SCREEN.print(
        f"{sum(report.ends.values())} requests in {report.seconds:.0f} s, the longest took {report.longest:.1f} s; "
        f"{grown / 1e6:+.2f} MB from the second third to the last; {len(report.wrong)} wrong {behind}"
    )
    for words, n in Counter(report.wrong).most_common(20):
        SCREEN.print(f"{n:>6} {words}")
    settings = {"requests": requests, "clients": clients, "places": places, "threads": threads, "seed": seed}
    more = {"resident": report.resident_by(20), "grown": grown, "behind": behind, "answered": None}
    write_json(output, "load of a server", settings=settings, **vars(report) | more)
    raise typer.Exit(1 if report.wrong or behind or grown > growth * second else 0)


if __name__ == "__main__":
    run_command(main)
