"""Loads a server with hundreds of clients, and checks that each request is answered and nothing leaks.

    pip install '.[server]' typer
    python tools/checks/http_load.py --requests 10000 --clients 300
    python tools/checks/http_load.py --deaths 20

Each client makes one request after the other: all APIs, streams and whole responses, tools, two texts at once. A tenth
of the requests is abandoned, by closing or resetting the connection, now and then many at once; a tenth is over a
limit or invalid (http_requests.py); some responses are read a few bytes at a time. There are more clients than slots
and queue places, so some get 429. Every request must end with its response or the right error before a deadline.
Afterwards, no request runs or waits, a new request is served, and the worker's memory in the last third of the time is
that of the second third.

With --deaths, the worker is then killed so many times while 32 clients stream. Each client must get its error soon, and
a new worker must write the same text as the first. Open files and memory of the supervisor must not grow, and its
worker must be gone after SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from common import SCREEN, ModelFile, Output, Seed, run_command, write_json
from http_requests import PATHS, Api, HttpRequest, HttpRequestGenerator, Limits, Received, find_problem
from http_wire import Answer, Connection
from makers.demo_corpus import held_out_prompts
from pymtp_server import RunningServer, serve

from pymtp import LLM, SamplingParams

LEAVES, REFUSED, SLOW = 0.1, 0.1, 0.05  # shares of all requests
CRASH = 8  # streams that a client resets at once
DEADLINE = 120.0  # seconds for a request
FREE = 30.0  # seconds after the last request until nothing runs or waits
MOMENTS = (0.0, 0.0, 0.003, 0.02, 0.1)  # seconds after which a client disconnects
LATER = 1.0  # maximum seconds that a client waits after a 429
PAUSES = 60  # pauses of a slow reader
PAGE = 4096  # bytes

DYING, ERROR_SECONDS = 32, 2.0  # streams when a worker is killed, and seconds until each has its error
GROWTH = 4 * 2**20  # bytes that the supervisor may grow over all deaths of workers
ALWAYS_HEALTHY = "from pymtp.server.process import supervisor; supervisor.HEALTHY_SECONDS = 0.0"  # restarts at once


@dataclass
class Report:
    """The results of all requests.

    ends: counts by how requests ended. wrong: descriptions of errors. longest: seconds of the slowest request.
    resident: bytes of the worker's memory, with the share of requests that had ended.
    answered: the texts to compare: requests, their responses or what of them arrived, and whether the client left.
    """

    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wrong: list[str] = field(default_factory=list)
    answered: list[tuple[HttpRequest, Answer, bool]] = field(default_factory=list)
    longest: float = 0.0
    seconds: float = 0.0
    resident: list[tuple[float, int]] = field(default_factory=list)

    def resident_by(self, n: int) -> list[int]:
        """Return the median bytes of the worker in each n-th of the requests, 0 if there was no measurement."""
        parts = [[size for at, size in self.resident if i / n <= at < (i + 1) / n] for i in range(n)]
        return [int(median(part)) if part else 0 for part in parts]

    @property
    def grown(self) -> int:
        """Return the growth in bytes from the second third of the requests to the last."""
        _, second, last = self.resident_by(3)
        return last - second


class Load:
    """The clients of one server."""

    def __init__(
        self,
        address: tuple[str, int],
        limits: Limits,
        apis: Sequence[Api],
        *,
        requests: int,
        seed: int = 0,
        worker: int | None = None,
        most: int = 24,
    ) -> None:
        """Set up the clients. worker: the process whose memory is measured. most: the maximum of tokens of a text."""
        self.report = Report()
        self._address, self._limits, self._worker, self._most = address, limits, worker, most
        self._texts = held_out_prompts(12, 1000)
        self._apis, self._requests, self._seed = apis, requests, seed
        self._left = requests

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

    def _generator(self, numbers: random.Random) -> HttpRequestGenerator:
        return HttpRequestGenerator(numbers, self._limits, self._apis, self._texts)

    async def _client(self, number: int) -> None:
        numbers = random.Random(f"{self._seed} {number}")
        generator = self._generator(numbers)
        kept: Connection | None = None
        while self._left > 0:
            self._left -= 1
            kind = numbers.random()
            begun = time.monotonic()
            try:
                if kind < LEAVES:
                    await asyncio.wait_for(self._leave(generator.good(400), numbers), DEADLINE)
                    continue
                request = generator.refused() if kind < LEAVES + REFUSED else generator.good(self._most)
                slow = kind > 1 - SLOW
                if kept is None or slow or not kept.usable:
                    kept = Connection(*self._address, small=slow)
                answer = await asyncio.wait_for(self._answer(kept, request, numbers, slow=slow), DEADLINE)
            except TimeoutError:
                self._wrong("no end within the deadline")
                kept = None
            except (OSError, EOFError, ValueError) as error:
                self._wrong(f"{error!r} ({request.kind} {request.path}, {'a' if request.stream else 'no'} stream)")
                kept = None
            else:
                if wrong := find_problem(request, answer):
                    self._wrong(wrong)
                    continue
                if answer.status == 429:
                    self.report.ends["told to come later"] += 1
                    await asyncio.sleep(numbers.uniform(0, LATER))
                else:
                    self.report.ends["read slowly" if slow and answer.status == 200 else request.kind] += 1
                    if answer.status == 200 and request.prompt is not None:
                        self.report.answered.append((request, answer, False))
            finally:
                self.report.longest = max(self.report.longest, time.monotonic() - begun)
        if kept is not None:
            kept.leave()

    async def _answer(self, to: Connection, request: HttpRequest, numbers: random.Random, *, slow: bool) -> Answer:
        if not to.usable:
            await to.open()
        await to.send(request.method, request.path, request.body, request.headers)
        status, headers = await to.head()
        parts = []
        async for part in to.parts(headers, numbers.choice((1, 16, 256)) if slow else 2**16):
            parts.append(part)
            if slow and len(parts) < PAUSES:
                await asyncio.sleep(numbers.choice((0.001, 0.01, 0.05)))
        return Answer(status, headers, b"".join(parts))

    async def _leave(self, request: HttpRequest, numbers: random.Random) -> None:
        """Send a request, and disconnect before or within its response."""
        client = Connection(*self._address)
        rudely = numbers.random() < 0.5
        try:
            await client.open()
            if numbers.random() < 0.1:  # in the middle of the body
                await client.send(
                    request.method, request.path, request.body[:-10], request.headers | {"Content-Length": "500000"}
                )
            else:
                await client.send(request.method, request.path, request.body, request.headers)
                if numbers.random() < 0.7:
                    status, headers = await client.head()
                    data = b""
                    async for part in client.parts(headers, numbers.randint(1, 2000)):
                        data += part
                        if numbers.random() < 0.3:
                            break
                    whole_lines = data[: data.rfind(b"\n") + 1]
                    if request.stream and status == 200 and request.prompt is not None:
                        self.report.answered.append((request, Answer(status, headers, whole_lines), True))
            await asyncio.sleep(numbers.choice(MOMENTS))
        except (OSError, EOFError) as error:
            self._wrong(f"{error!r} before the client left")
        finally:
            client.leave(rudely=rudely)
        self.report.ends["left"] += 1

    async def _crash(self, number: int, when: int) -> None:
        """Reset several running streams at once. when: the number of remaining requests at that time."""
        while self._left > when:
            await asyncio.sleep(0.01)
        numbers = random.Random(f"{self._seed} crash {number}")
        generator, streams = self._generator(numbers), [Connection(*self._address) for _ in range(CRASH)]

        async def begin(stream: Connection) -> None:
            request = generator.good(400)
            await (await stream.open()).send(request.method, request.path, request.body, request.headers)
            await stream.head()

        try:
            await asyncio.wait_for(asyncio.gather(*map(begin, streams)), DEADLINE)
            await asyncio.sleep(numbers.choice(MOMENTS))
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            self._wrong(f"{error!r} before the crash")
        finally:
            for stream in streams:
                stream.leave(rudely=True)
        self.report.ends["reset at once"] += CRASH

    def _wrong(self, words: str) -> None:
        self.report.ends["wrong"] += 1
        self.report.wrong.append(words)

    async def _watch(self) -> None:
        """Measure the worker's memory."""
        while self._worker is not None:
            with suppress(OSError):  # a dead worker shows in the responses
                pages = int(Path(f"/proc/{self._worker}/statm").read_text().split()[1])
                self.report.resident.append((1 - max(0, self._left) / self._requests, pages * PAGE))
            await asyncio.sleep(0.1)


async def busy(address: tuple[str, int], key: dict[str, str]) -> dict[str, float]:
    """Return the numbers of running and of waiting requests."""
    answer = await (await Connection(*address).open()).ask("GET", "/metrics", headers=key)
    found = re.findall(r"^pymtp:num_requests_(running|waiting)\S* (\S+)$", answer.body.decode(), re.MULTILINE)
    return {name: float(n) for name, n in found}


async def left_behind(address: tuple[str, int], limits: Limits) -> str:
    """Describe requests that still run or wait, or the failure of a new request; "" for none."""
    key = {"Authorization": f"Bearer {limits.key}"}
    end = time.monotonic() + FREE
    while (found := await busy(address, key)) != {"running": 0, "waiting": 0}:
        if time.monotonic() > end:
            return f"still there: {found}"
        await asyncio.sleep(0.05)
    answer = await complete(address, key, max_tokens=8, ignore_eos=True)
    return "" if answer.status == 200 and answer.json()["usage"]["completion_tokens"] == 8 else f"then: {answer}"


async def complete(address: tuple[str, int], key: dict[str, str], **more: Any) -> Answer:
    """Ask for a greedy completion."""
    body = json.dumps({"model": "m", "prompt": "def f(x):", "max_tokens": 50, "temperature": 0, **more}).encode()
    return await (await Connection(*address).open()).ask("POST", PATHS["completions"], body, key)


async def die(server: RunningServer, key: dict[str, str]) -> str:
    """Kill the worker while clients stream. Describe what was wrong; "" for nothing."""
    address, worker, ends = (server.host, server.port), server.worker, list[float]()

    async def stream() -> None:
        try:
            await complete(address, key, max_tokens=4000, ignore_eos=True, stream=True)
        except (OSError, EOFError):
            ends.append(time.monotonic())

    text = (await complete(address, key)).json()["choices"][0]["text"]
    streams = [asyncio.create_task(stream()) for _ in range(DYING)]
    while sum((await busy(address, key)).values()) < DYING:
        await asyncio.sleep(0.02)
    await asyncio.sleep(random.uniform(0, 0.5))
    killed = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    await asyncio.wait(streams, timeout=DEADLINE)
    wrong = f"only {len(ends)} of {DYING} clients got an error" if len(ends) < DYING else ""
    if max(ends, default=killed) - killed > ERROR_SECONDS:
        wrong = f"the last error came after {max(ends) - killed:.1f} s"
    while time.monotonic() < killed + DEADLINE:
        with suppress(OSError, EOFError):
            answer = await complete(address, key)
            if answer.status == 200:
                return wrong if answer.json()["choices"][0]["text"] == text else "another text afterwards"
        await asyncio.sleep(0.05)
    return "no worker afterwards"


def kill_workers(model: Path | None, deaths: int) -> list[str]:
    """Kill the worker of a server so many times, and describe what was wrong."""
    wrong, before = list[str](), (0, 0)
    command = (sys.executable, "-I", "-c", f"{ALWAYS_HEALTHY}; from pymtp.cli import app_main; app_main()")
    with serve(model, command, n_seq_max=4, ctx=8192, threads=1, api_key="a key") as server:

        def use() -> tuple[int, int]:
            pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
            return len(list(Path(f"/proc/{server.pid}/fd").iterdir())), pages * PAGE

        for n in range(deaths):
            wrong += filter(None, [asyncio.run(die(server, {"Authorization": "Bearer a key"}))])
            before = use() if n == 0 else before
        files, size = use()
        worker = server.worker
    SCREEN.print(f"{deaths} deaths; supervisor: open files {before[0]} → {files}, bytes {before[1]:,} → {size:,}")
    if files > before[0] or size > before[1] + GROWTH:
        wrong.append("the supervisor grew")
    return wrong + (["the worker lives on"] if Path(f"/proc/{worker}").exists() else [])


async def apis_of(address: tuple[str, int]) -> list[Api]:
    """Return the APIs that the server has."""
    paths: Any = (await (await Connection(*address).open()).ask("GET", "/openapi.json")).json()["paths"]
    return [api for api, path in PATHS.items() if path in paths]


@dataclass
class Compared:
    """Requests of an API whose texts were compared with those of an LLM. differ: the tokens of differing texts."""

    requests: int = 0
    left: int = 0
    tokens: int = 0
    differ: int = 0


def compare(llm: LLM, answered: Sequence[tuple[HttpRequest, Answer, bool]], by_api: dict[str, Compared]) -> list[str]:
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
            mine, reason = got.texts.get(i, ""), got.reasons.get(i)
            if mine != text.text if got.tokens is not None else not text.text.startswith(mine):
                wrong = wrong or f"text {i} is {mine!r}, and {text.text!r} by the LLM"
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
            load = Load((server.host, server.port), limits, list(PATHS), requests=400, seed=seed, most=160)
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
    deaths: Annotated[int, typer.Option(help="How often the worker is killed.")] = 0,
    growth: Annotated[float, typer.Option(help="Allowed growth of memory from the second third to the last.")] = 0.05,
    output: Output = None,
) -> None:
    """Load a server; exit with status 1 if anything is wrong."""
    limits = Limits("a key", 512, 2**20)
    options = {"n_seq_max": places, "max_queue": clients - 20, "max_body": 1, "ctx": limits.n_ctx, "cache": 64}
    with serve(model, **options, threads=threads, api_key=limits.key) as server:
        address = server.host, server.port
        apis = asyncio.run(apis_of(address))
        worker = server.worker
        load = Load(address, limits, apis, requests=requests, seed=seed, worker=worker)
        report = asyncio.run(load.play(clients, requests // 400))
        behind = asyncio.run(left_behind(address, limits))
        if server.worker != worker:
            report.wrong.append("the worker is another one")
    report.wrong += kill_workers(model, deaths) if deaths else []
    for words, n in sorted(report.ends.items(), key=lambda each: -each[1]):
        SCREEN.print(f"{n:>6} {words}")
    SCREEN.print(
        f"{sum(report.ends.values())} requests to {', '.join(apis)} in {report.seconds:.0f} s, the longest took "
        f"{report.longest:.1f} s; {report.grown / 1e6:+.2f} MB from the second third to the last; {len(report.wrong)} "
        f"wrong {behind}"
    )
    for words, n in Counter(report.wrong).most_common(20):
        SCREEN.print(f"{n:>6} {words}")
    settings = {"requests": requests, "clients": clients, "places": places, "threads": threads, "seed": seed}
    more = {"resident": report.resident_by(20), "grown": report.grown, "behind": behind, "answered": None}
    write_json(output, "load of a server", settings=settings, **vars(report) | more)
    if report.wrong or behind or report.grown > growth * report.resident_by(3)[1]:
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
