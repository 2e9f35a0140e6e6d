"""Compare the speed of two builds of pymtp in interleaved pairs: the guard against changes that make something slower.

    python tools/bench/compare_builds.py --old ../before/.venv/bin/python --new .venv/bin/python -m MODEL.gguf

MODEL "-" stands for the shipped model of each build. Each round starts a process of each build, and a `pymtp serve` of
each for the arm with HTTP. The builds take turns at every arm, in random order, each time with a new `LLM` over weights
that the process loaded once; only a server keeps its `LLM` for the round. The ratio of a pair is the speed of the new
build divided by that of the old one. Both must generate the same tokens. Only public names of pymtp are used, so that
old builds can be measured.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
import string
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from http_clients import completion_tokens, send_all, texts_of
from pymtp_server import serve

from pymtp.bench.machine import machine

# draft_tokens of each arm, with the number of its requests and the time that it compares
ARMS: dict[str, tuple[int | str, int, str]] = {
    "prefill none": (0, 1, "prefill"),
    "prefill fused": (3, 1, "prefill"),
    "plain": (0, 1, "decode"),
    **{f"depth {n}": (n, 1, "decode") for n in (1, 3, 7)},
    "auto": ("auto", 1, "decode"),
    "plain stream": (0, 1, "stream"),
    "auto stream": ("auto", 1, "stream"),
    "8 requests": ("auto", 8, "whole"),
    "8 HTTP streams": ("auto", 8, "http"),
}
SHORT_PROMPT = 128  # tokens of the prompts for decoding

WORKER = """
import hashlib, json, sys, time
import pymtp
print(json.dumps([pymtp.__path__[0], pymtp.build_info()]), flush=True)
model = None

def params(n):
    return pymtp.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)

def measure(llm, prompts, kind, n):
    started = time.perf_counter()
    if kind == "stream":
        first, rounds, tokens = None, 0, []
        for piece in llm.stream(prompts[0], params(n)):
            first, rounds = first or time.perf_counter(), rounds + 1
            tokens += piece.token_ids
        return time.perf_counter() - first, rounds, tokens
    done = llm.generate(prompts, params(n))
    whole, stats = time.perf_counter() - started, done[0].stats
    seconds = {"prefill": stats.prefill_seconds, "decode": stats.decode_seconds, "whole": whole}[kind]
    return seconds, max(c.stats.rounds for c in done), [c.token_ids for c in done]

for line in sys.stdin:
    ask = json.loads(line)
    model = model or pymtp.Model(ask["model"])
    with pymtp.LLM(model, **ask["options"]) as llm:
        llm.generate(ask["warm_up"], params(12))
        seconds, rounds, tokens = measure(llm, ask["prompts"], ask["kind"], ask["n"])
    print(json.dumps([seconds, rounds, hashlib.sha256(str(tokens).encode()).hexdigest()]), flush=True)
"""


class Build:
    """Processes that measure one build of pymtp: one with LLMs, and a server if `http`. They end with the stack."""

    def __init__(
        self, stack: ExitStack, python: Path, model: Path | None, threads: int, n_ctx: int, *, http: bool
    ) -> None:
        self._model, self._threads, self._n_ctx = model, threads, n_ctx
        self._process = subprocess.Popen(
            [python, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        stack.callback(self._process.communicate)  # at the end of its input the process ends
        folder, self.info = self._read()
        git = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"]
        self.info["commit"] = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None
        if http:
            options = {"ctx": n_ctx, "n_seq_max": 8, "threads": threads, "cache": 0}
            command = [str(python.with_name("pymtp"))]
            self._server = stack.enter_context(serve(model, command=command, **options))
            self._stream(["warm-up"] * 8, 12)

    def measure(self, arm: str, prompts: list[Any], warm_up: list[int], n: int) -> tuple[float, int, str]:
        """Run one arm. Return its seconds, rounds, and a hash of the generated text."""
        depth, n_requests, kind = ARMS[arm]
        if kind == "http":
            return self._stream(prompts, n)
        options = {"n_ctx": self._n_ctx, "n_seq_max": n_requests, "n_threads": self._threads, "draft_tokens": depth}
        ask = {"options": options, "kind": kind, "prompts": prompts, "warm_up": [warm_up] * n_requests, "n": n}
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"model": str(self._model) if self._model else None, **ask}) + "\n")
        self._process.stdin.flush()
        seconds, rounds, text = self._read()
        return seconds, rounds, text

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise typer.Exit(self._process.wait() or 1)  # its traceback is on stderr
        return json.loads(line)

    def _stream(self, prompts: list[str], n: int) -> tuple[float, int, str]:
        body = {"model": "m", "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        bodies = [json.dumps({**body, "prompt": prompt}).encode() for prompt in prompts]
        started = time.perf_counter()
        answers = send_all(self._server.host, self._server.port, bodies, "/v1/completions")
        seconds = time.perf_counter() - started
        if [completion_tokens(answer) for answer in answers] != [n] * len(prompts):
            raise ValueError("the server did not generate all tokens")
        texts = [texts_of(answer) for answer in answers]
        return seconds, 1, hashlib.sha256(str(texts).encode()).hexdigest()


def summary(ratios: list[float], old: list[float], new: list[float]) -> dict[str, float]:
    """Return the median ratio, its quartiles, and the median seconds of each build."""
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    row = {"median": middle, "lower quartile": low, "upper quartile": high, "pairs": len(ratios)}
    return row | {"old seconds": statistics.median(old), "new seconds": statistics.median(new)}


def main(
    old: Annotated[Path, typer.Option(help="Python of the environment with the old build.")],
    new: Annotated[Path, typer.Option(help="Python of the environment with the new build.")],
    model: Annotated[str, typer.Option("--model", "-m", help='GGUF file, "-" for the shipped model.')],
    only: Annotated[list[str] | None, typer.Option(help="Arms with this in their name; may be repeated.")] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompts for prefill.")] = 1024,
    tokens: Annotated[int, typer.Option(help="Tokens decoded per request.")] = 96,
    rounds: Annotated[int, typer.Option(min=1, help="Processes of each build.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="Pairs for each arm and process.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of each build.")] = 2,
    by_rounds: Annotated[
        bool, typer.Option(help="Compare seconds of a round: for builds whose kernels round differently.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSON file to write.")] = None,
) -> None:
    """Compare the speed of two builds of pymtp, in pairs."""
    arms = [arm for arm in ARMS if not only or any(text in arm for text in only)]
    if not arms:
        raise typer.BadParameter(f"no arm has that in its name: {', '.join(ARMS)}", param_hint="--only")
    file = None if model == "-" else Path(model).resolve()
    numbers, n_ctx = random.Random(1), max(prompt, SHORT_PROMPT) + tokens + SHORT_PROMPT
    random_ids = [numbers.choices(range(256), k=max(prompt, SHORT_PROMPT)) for _ in range(8)]
    http = any(ARMS[arm][2] == "http" for arm in arms)
    pairs: dict[str, list[tuple[float, float, float]]] = {arm: [] for arm in arms}
    infos: dict[str, Any] = {}
    for number in range(rounds):
        with ExitStack() as stack:
            builds = {}
            for name, python in (("old", old), ("new", new)):
                builds[name] = Build(stack, python.absolute(), file, threads, n_ctx, http=http)
                infos[name] = builds[name].info
            for _ in range(repeats):
                for arm in numbers.sample(arms, len(arms)):
                    _, n_requests, kind = ARMS[arm]
                    prompts: list[Any] = [ids[: prompt if kind == "prefill" else SHORT_PROMPT] for ids in random_ids]
                    if kind == "http":  # other texts each time, as a server may reuse what it computed before
                        prompts = ["".join(numbers.choices(string.ascii_lowercase + " ", k=100)) for _ in prompts]
                    ask = (arm, prompts[:n_requests], random_ids[-1][:SHORT_PROMPT], 1 if kind == "prefill" else tokens)
                    answers = {name: builds[name].measure(*ask) for name in numbers.sample(list(builds), 2)}
                    if not by_rounds and answers["old"][2] != answers["new"][2]:
                        raise typer.BadParameter(f"{arm}: the builds write different tokens; see --by-rounds")
                    before, after = (
                        answers[name][0] / (max(1, answers[name][1]) if by_rounds else 1)  # a prefill has no rounds
                        for name in builds
                    )
                    pairs[arm].append((before / after, before, after))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    rows = {arm: summary(*map(list, zip(*pairs[arm], strict=True))) for arm in arms}
    for arm, row in rows.items():
        quartiles = f"{row['lower quartile']:.3f} to {row['upper quartile']:.3f}"
        print(f"{arm:16} {row['median']:.3f}  ({quartiles}, {row['pairs']} pairs)")
    if output:
        report = {"model": file.name if file else "shipped", "threads": threads, "prompt": prompt, "tokens": tokens}
        report |= {"machine": machine(), "builds": infos, "arms": rows}
        output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
