"""Serves three models of which two fit into the allowed memory, and checks what a server of several models promises.

    pip install '.[server]' typer
    python tools/checks/several_models.py --requests 500 --kills 10

Clients ask for models at random; workers are killed at random moments. Each request must end with the text that an LLM
of its model generates, or with a clear error: status 503 with Retry-After, or an error at the end of a stream. At no
moment may the resident memory of all workers be more than the allowed memory. Then the time of a load on demand is
compared with that of the start of a server of that model.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import typer
from common import DENSE, SCREEN, Output, Seed, run_command, write_json
from makers.make_model import make_model
from pymtp_server import COMMAND

from pymtp import LLM, SamplingParams
from pymtp.model.model import demo_model
from pymtp.options import LLMOptions
from pymtp.server.memory import HOST, plan_bytes

PROMPTS = ("def f(x):", "import os\n", "class A:\n    def ", "for i in range(")
OPTIONS = {"n_ctx": 1024, "n_seq_max": 2, "n_threads": 1}
CACHE = 16  # MiB
BROKEN = "ended before the answer did"


class Server:
    """A running `pymtp serve`. lines: its log. pids: the workers that it has started."""

    def __init__(self, *options: str) -> None:
        self.begun = time.monotonic()
        command = [*COMMAND, "serve", "--port", "0", "-c", "1024", "-s", "2", "-t", "1"]
        self.process = subprocess.Popen([*command, "--cache", str(CACHE), *options], stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.pids: list[int] = []
        self.url = ""
        self.ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        self.ready.wait()
        if not self.url:
            raise SystemExit(f"the server does not start: {''.join(self.lines)}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "worker=" in line:
                self.pids.append(int(re.findall(r"worker=(\d+)", line)[0]))
            if " serving " in line:
                self.url = re.findall(r"url=(\S+)", line)[0]
                self.ready.set()
        self.ready.set()

    def alive(self) -> dict[int, int]:
        """Return the resident bytes of the workers that run, by process id. The first process is the front."""
        found = {}
        for pid in self.pids[1:]:
            with suppress(OSError):
                found[pid] = 4096 * int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return {pid: size for pid, size in found.items() if size}  # a zombie has none

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def make_models(folder: Path) -> list[Path]:
    """Return three models: the shipped one, and two with random weights."""
    files = [folder / f"{name}.gguf" for name in ("shipped", "one", "two")]
    shutil.copy(demo_model(), files[0])
    for seed, file in enumerate(files[1:]):
        make_model(DENSE, file, weight_type="q4_0", seed=seed, threads=1)
    return files


async def ask(client: httpx.AsyncClient, numbers: random.Random, texts: dict[tuple[str, str], str]) -> str:
    """Make one request; return how it ended, beginning with "wrong" if it must not end so."""
    name, prompt = numbers.choice(sorted(texts))
    body = {"model": name, "prompt": prompt, "max_tokens": 24, "temperature": 0, "stream": numbers.random() < 0.5}
    try:
        answer = await client.post("/v1/completions", json=body)
    except httpx.HTTPError as error:
        return f"wrong: {error!r}"
    if answer.status_code == 503:
        await asyncio.sleep(min(2.0, float(answer.headers["retry-after"])) if "retry-after" in answer.headers else 0)
        return "told to come later" if "retry-after" in answer.headers else f"wrong: {answer.text}"
    if answer.status_code != 200:
        return f"wrong: {answer.status_code} {answer.text}"
    if not body["stream"]:
        text = answer.json()["choices"][0]["text"]
    else:
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        if "error" in events[-1]:
            return "broken off with an error" if BROKEN in events[-1]["error"]["message"] else f"wrong: {events[-1]}"
        text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
    return "answered" if text == texts[name, prompt] else f"wrong: {name} wrote {text!r}"


async def play(
    server: Server, texts: dict[tuple[str, str], str], requests: int, clients: int, kills: int, seed: int
) -> Any:
    """Make all requests. Return the ends of requests, and the largest resident memory of all workers."""
    numbers, ends, peak = random.Random(seed), Counter[str](), 0
    left, moments = requests, sorted(numbers.sample(range(requests), kills))

    async def client() -> None:
        nonlocal left
        async with httpx.AsyncClient(base_url=server.url, timeout=None) as connection:
            while left > 0:
                left -= 1
                if moments and left <= moments[-1]:
                    moments.pop()
                    if alive := sorted(server.alive()):
                        os.kill(numbers.choice(alive), signal.SIGKILL)
                        ends["killed"] += 1
                ends[await ask(connection, numbers, texts)] += 1

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, sum(server.alive().values()))
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(client() for _ in range(clients)))
    watching.cancel()
    return ends, peak


def start_seconds(model: Path, rounds: int) -> tuple[float, float]:
    """Return the seconds from the start of a server of one model to its first answer, and those of a load on demand."""
    body = {"model": model.stem, "prompt": "x", "max_tokens": 1}
    alone, demanded = [], []
    for _ in range(rounds):
        single = Server("-m", str(model))
        httpx.post(f"{single.url}/v1/completions", json=body, timeout=60).raise_for_status()
        alone.append(time.monotonic() - single.begun)
        single.end()
        several = Server("-m", str(model), "-m", f"{model.parent}/one.gguf")
        time.sleep(0.5)
        begun = time.monotonic()
        httpx.post(f"{several.url}/v1/completions", json=body, timeout=60).raise_for_status()
        demanded.append(time.monotonic() - begun)
        several.end()
    return median(alone), median(demanded)


def main(
    requests: Annotated[int, typer.Option("--requests", "-r", min=1)] = 500,
    clients: Annotated[int, typer.Option(min=1)] = 16,
    kills: Annotated[int, typer.Option(min=0)] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Starts that are timed.")] = 5,
    seed: Seed = 0,
    output: Output = None,
) -> None:
    """Run the check; exit with status 1 if anything is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        files = make_models(Path(folder))
        texts = {}
        for file in files:
            with LLM(file, **OPTIONS, draft_tokens=0) as llm:
                texts |= {(file.stem, p): llm.generate(p, SamplingParams(max_tokens=24)).text for p in PROMPTS}
        sizes = sorted(plan_bytes(LLMOptions(file, **OPTIONS, cache_bytes=CACHE * 2**20))[HOST] for file in files)
        allowed = (sizes[1] + sizes[2]) // 2**20 + 1
        server = Server(*(option for file in files for option in ("-m", str(file))), "--models-memory", str(allowed))
        begun = time.monotonic()
        ends, peak = asyncio.run(play(server, texts, requests, clients, kills, seed))
        seconds, code = time.monotonic() - begun, server.end()
        loads = sum("loading the model" in line for line in server.lines)
        for how, n in ends.most_common():
            SCREEN.print(f"{n:>6} {how}")
        SCREEN.print(f"{seconds:.0f} s, {loads} loads; at most {peak / 2**20:.0f} of {allowed} MiB")
        alone, demanded = start_seconds(files[0], rounds)
    SCREEN.print(f"load on demand {demanded:.2f} s, start of a server {alone:.2f} s: {demanded / alone:.2f}")
    wrong = [how for how in ends if how.startswith("wrong")] + ([f"exit code {code}"] if code else [])
    wrong += [f"{peak >> 20} MiB are more than {allowed}"] if peak > allowed * 2**20 else []
    results = {"peak": peak, "allowed": allowed << 20, "loads": loads, "alone": alone, "demanded": demanded}
    write_json(
        output,
        "several models",
        settings={"requests": requests, "clients": clients, "seed": seed},
        ends=ends,
        **results,
    )
    raise typer.Exit(1 if wrong or demanded > 1.1 * alone else 0)


if __name__ == "__main__":
    run_command(main)
