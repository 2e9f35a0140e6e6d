"""Loads a server with hundreds of clients, and checks that each request is answered and nothing leaks.

    pip install '.[server]' typer
    python tools/checks/http_load.py --requests 10000 --clients 300

Each client makes one request after the other: all APIs, streams and whole responses, tools, two texts at once. A tenth
of the requests is abandoned, by closing or resetting the connection, or by killing a client process; a tenth is over a
limit or invalid (http_requests.py); some responses are read a few bytes at a time. There are more clients than slots
and queue places, so some get 429. Every request must end with its response or the right error before a deadline.
Afterwards, no request runs or waits, a new request is served, and the worker's memory in the last third of the time is
that of the second third.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
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
from http_requests import PATHS, Api, HttpRequest, HttpRequestGenerator, Limits, find_problem
from http_wire import Answer, Connection
from rich.console import Console

from pymtp import build_info
from pymtp.bench.machine import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts
from pymtp_server import serve

LEAVES, REFUSED, SLOW = 0.1, 0.1, 0.05  # shares of all requests
KILLED = 8  # requests of a killed client
DEADLINE = 120.0  # seconds for a request
FREE = 30.0  # seconds after the last request until nothing runs or waits
MOMENTS = (0.0, 0.0, 0.003, 0.02, 0.1)  # seconds after which a client disconnects
LATER = 1.0  # maximum seconds that a client waits after a 429
PAUSES = 60  # pauses of a slow reader
PAGE = 4096  # bytes

VICTIM = """
import json, socket, sys
address, requests = json.load(sys.stdin)
clients = []
for body in requests:
    client = socket.create_connection(address)
    client.sendall(body.encode())
    clients.append(client)
for client in clients:
    client.recv(1)
print("running", flush=True)
while True:
    for client in clients:
        client.recv(100)
"""


@dataclass
class Report:
    """The results of all requests.

    ends: counts by how requests ended. wrong: descriptions of errors. longest: seconds of the slowest request.
    resident: bytes of the worker's memory, with the share of requests that had ended.
    """

    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wrong: list[str] = field(default_factory=list)
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
    ) -> None:
        """Set up the clients. worker: the process whose memory is measured."""
        self.report = Report()
        self._address, self._limits, self._worker = address, limits, worker
        self._texts = held_out_prompts(12, 1000)
        self._apis, self._requests, self._seed = apis, requests, seed
        self._left = requests

    async def play(self, clients: int, victims: int) -> Report:
        """Make all requests. victims: the number of client processes to kill."""
        begun = time.monotonic()
        watching = asyncio.create_task(self._watch())
        every = self._requests / (victims + 1)
        tasks = [asyncio.create_task(self._client(i)) for i in range(clients)]
        tasks += [asyncio.create_task(self._killed(i, self._requests - int((i + 1) * every))) for i in range(victims)]
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
                request = generator.refused() if kind < LEAVES + REFUSED else generator.good()
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
                if numbers.random() < 0.5:
                    _, headers = await client.head()
                    async for _ in client.parts(headers, numbers.randint(1, 2000)):
                        if numbers.random() < 0.3:
                            break
            await asyncio.sleep(numbers.choice(MOMENTS))
        except (OSError, EOFError) as error:
            self._wrong(f"{error!r} before the client left")
        finally:
            client.leave(rudely=rudely)
        self.report.ends["left"] += 1

    async def _killed(self, number: int, when: int) -> None:
        """Kill a process with several running streams. when: the number of remaining requests at that time."""
        while self._left > when:
            await asyncio.sleep(0.01)
        numbers = random.Random(f"{self._seed} killed {number}")
        generator, texts = self._generator(numbers), list[str]()
        while len(texts) < KILLED:
            request = generator.good(400)
            given = {"Host": "killed", "Content-Length": len(request.body), **request.headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
            texts.append(f"POST {request.path} HTTP/1.1\r\n{lines}\r\n{request.body.decode()}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", VICTIM, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([self._address, texts]).encode())
        process.stdin.close()
        try:
            if not await asyncio.wait_for(process.stdout.readline(), DEADLINE):
                self._wrong("a client that was to be killed has ended")
            await asyncio.sleep(numbers.choice(MOMENTS))
        except TimeoutError:
            self._wrong("a client that was to be killed got no answer")
        finally:
            process.kill()
            await process.wait()
        self.report.ends["killed"] += KILLED

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


async def left_behind(address: tuple[str, int], limits: Limits) -> str:
    """Describe requests that still run or wait, or the failure of a new request; "" for none."""
    key = {"Authorization": f"Bearer {limits.key}"}
    end = time.monotonic() + FREE
    while True:
        answer = await (await Connection(*address).open()).ask("GET", "/metrics", headers=key)
        found = dict(re.findall(r"^pymtp:num_requests_(running|waiting)\S* (\S+)$", answer.body.decode(), re.MULTILINE))
        if {float(each) for each in found.values()} == {0.0} and len(found) == 2:
            break
        if time.monotonic() > end:
            return f"still there: {found}"
        await asyncio.sleep(0.05)
    body = json.dumps({"model": "m", "prompt": "def f(", "max_tokens": 8, "ignore_eos": True}).encode()
    answer = await (await Connection(*address).open()).ask("POST", PATHS["completions"], body, key)
    return "" if answer.status == 200 and answer.json()["usage"]["completion_tokens"] == 8 else f"then: {answer}"


async def apis_of(address: tuple[str, int]) -> list[Api]:
    """Return the APIs that the server has."""
    paths: Any = (await (await Connection(*address).open()).ask("GET", "/openapi.json")).json()["paths"]
    return [api for api, path in PATHS.items() if path in paths]


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    requests: Annotated[int, typer.Option("--requests", "-r", min=30)] = 10_000,
    clients: Annotated[int, typer.Option(min=1)] = 300,
    places: Annotated[int, typer.Option(min=1, help="Texts at a time.")] = 8,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads of the engine: few, because the clients are on this machine.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the requests; their times are not reproducible.")] = 0,
    growth: Annotated[
        float, typer.Option(help="Allowed growth of memory from the second third to the last, as a share.")
    ] = 0.05,
    output: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Load a server; exit with status 1 if anything is wrong."""
    console = Console(highlight=False)
    limits = Limits("a key", 512, 2**20)
    options = {
        "n_seq_max": places,
        "max_queue": clients - 20,
        "max_body": 1,
        "ctx": limits.n_ctx,
        "cache": 64,
        "threads": threads,
    }
    with serve(model, **options, api_key=limits.key) as server:
        address = server.host, server.port
        apis = asyncio.run(apis_of(address))
        worker = server.worker
        load = Load(address, limits, apis, requests=requests, seed=seed, worker=worker)
        report = asyncio.run(load.play(clients, requests // 400))
        behind = asyncio.run(left_behind(address, limits))
        if server.worker != worker:
            report.wrong.append("the worker is another one")
    for words, n in sorted(report.ends.items(), key=lambda each: -each[1]):
        console.print(f"{n:>6} {words}")
    console.print(
        f"{sum(report.ends.values())} requests to {', '.join(apis)} in {report.seconds:.0f} s, the longest took "
        f"{report.longest:.1f} s; {report.grown / 1e6:+.2f} MB from the second third to the last; {len(report.wrong)} "
        f"wrong {behind}"
    )
    for words, n in Counter(report.wrong).most_common(20):
        console.print(f"{n:>6} {words}", soft_wrap=True)
    if output is not None:
        record = vars(report) | {"resident": report.resident_by(20), "grown": report.grown, "behind": behind}
        settings = {"requests": requests, "clients": clients, "places": places, "threads": threads, "seed": seed}
        where = {"check": "load of a server", "settings": settings, "machine": machine(), "build": build_info()}
        output.write_text(json.dumps(where | record, indent=1) + "\n")
    if report.wrong or behind or report.grown > growth * report.resident_by(3)[1]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
