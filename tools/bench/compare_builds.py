"""Compare the speed of two builds of pymtp: prefill, plain decoding, and rounds with drafts, interleaved.

    python tools/bench/compare_builds.py --new .venv/bin/python --old ../before/.venv/bin/python -m MODEL.gguf

Each round starts one process for each build. They take turns at every measurement, in random order, each with a new
`LLM` over weights that the process loaded once. The ratio of a pair is the speed of the new build divided by that of
the old one. Both must generate the same tokens. Only public names of pymtp are used, so that old builds can be
measured.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from pymtp.bench.machine import machine

PROMPT_ARMS = {"prefill none": 0, "prefill fused": 3}
DECODE_ARMS: dict[str, int | str] = {"plain decoding": 0} | {f"rounds at depth {n}": n for n in (1, 3, 7)}
DECODE_ARMS["rounds at auto"] = "auto"
SHORT_PROMPT = 128  # tokens of the prompt for decoding

WORKER = """
import json, sys, hashlib
import pymtp
model, llms, params = None, {}, pymtp.SamplingParams
for line in sys.stdin:
    ask = json.loads(line)
    if model is None:
        model = pymtp.Model(ask["model"])
    with pymtp.LLM(model, n_ctx=ask["n_ctx"], n_threads=ask["threads"], draft_tokens=ask["depth"]) as llm:
        llm.generate(ask["warm_up"], params(temperature=0, max_tokens=12, ignore_eos=True))
        done = llm.generate(ask["prompt"], params(temperature=0, max_tokens=ask["n"], ignore_eos=True))
    seconds = done.stats.prefill_seconds if ask["n"] == 1 else done.stats.decode_seconds
    text = hashlib.sha256(str(done.token_ids).encode()).hexdigest()
    print(json.dumps([seconds, done.stats.rounds, text]), flush=True)
"""


class Build:
    """A process that measures with one build of pymtp."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )

    def measure(self, request: dict[str, Any]) -> tuple[float, int, str]:
        """Run a measurement. Return its seconds, rounds, and a hash of the generated tokens."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise typer.Exit(self._process.wait() or 1)
        seconds, rounds, text = json.loads(line)
        return seconds, rounds, text

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@dataclass(frozen=True)
class Pair:
    """One measurement with each build: seconds for the same tokens, or per round with --by-rounds."""

    arm: str
    old_seconds: float
    new_seconds: float

    @property
    def ratio(self) -> float:
        """Return the speed of the new build relative to the old one."""
        return self.old_seconds / self.new_seconds


def measure(
    old: Path, new: Path, requests: dict[str, dict[str, Any]], rounds: int, repeats: int, by_rounds: bool
) -> list[Pair]:
    """Measure with `rounds` processes of each build, and in each process `repeats` pairs of each request."""
    pairs = []
    order = random.Random(0)
    for number in range(rounds):
        builds = {"old": Build(old), "new": Build(new)}
        for _ in range(repeats):
            for arm in order.sample(list(requests), len(requests)):
                answers = {name: builds[name].measure(requests[arm]) for name in order.sample(list(builds), 2)}
                if not by_rounds and answers["old"][2] != answers["new"][2]:
                    raise typer.BadParameter(f"{arm}: the builds write different tokens; see --by-rounds")
                divisors = {name: max(1, n) if by_rounds else 1 for name, (_, n, _) in answers.items()}
                pairs.append(Pair(arm, answers["old"][0] / divisors["old"], answers["new"][0] / divisors["new"]))
        for build in builds.values():
            build.close()
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return pairs


def summary(pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """Return for each arm the median ratio, its quartiles, and the median seconds of each build."""
    rows = {}
    for arm in dict.fromkeys(pair.arm for pair in pairs):
        arm_pairs = [pair for pair in pairs if pair.arm == arm]
        ratios = sorted(pair.ratio for pair in arm_pairs)
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        rows[arm] = {
            "median": statistics.median(ratios),
            "lower quartile": low,
            "upper quartile": high,
            "pairs": len(ratios),
            "old seconds": statistics.median(pair.old_seconds for pair in arm_pairs),
            "new seconds": statistics.median(pair.new_seconds for pair in arm_pairs),
        }
    return rows


def main(
    old: Annotated[Path, typer.Option(help="Python of the environment with the old build.")],
    new: Annotated[Path, typer.Option(help="Python of the environment with the new build.")],
    model: Annotated[Path, typer.Option("--model", "-m", help="GGUF file.")],
    prompt: Annotated[int, typer.Option(help="Tokens of the prompts for prefill.")] = 1024,
    tokens: Annotated[int, typer.Option(help="Tokens decoded per measurement.")] = 96,
    rounds: Annotated[int, typer.Option(help="Processes of each build.")] = 5,
    repeats: Annotated[int, typer.Option(help="Pairs for each arm and process.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of each build.")] = 2,
    by_rounds: Annotated[
        bool, typer.Option(help="Compare seconds of a round: for builds whose kernels round differently.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSON file to write.")] = None,
) -> None:
    """Compare the speed of two builds of pymtp, in pairs."""
    ids = random.Random(1)
    prompt_ids = [ids.randrange(256) for _ in range(prompt)]
    base = {
        "model": str(model.resolve()),
        "threads": threads,
        "n_ctx": prompt + SHORT_PROMPT + tokens,
        "warm_up": prompt_ids[:SHORT_PROMPT][::-1],
    }
    requests = {arm: {**base, "depth": depth, "prompt": prompt_ids, "n": 1} for arm, depth in PROMPT_ARMS.items()}
    requests |= {
        arm: {**base, "depth": depth, "prompt": prompt_ids[:SHORT_PROMPT], "n": tokens}
        for arm, depth in DECODE_ARMS.items()
    }
    rows = summary(measure(old.absolute(), new.absolute(), requests, rounds, repeats, by_rounds))
    for arm, row in rows.items():
        print(
            f"{arm:20} {row['median']:.3f}  ({row['lower quartile']:.3f} to {row['upper quartile']:.3f}, "
            f"{row['pairs']:.0f} pairs)"
        )
    if output:
        report = {"model": model.name, "threads": threads, "machine": machine(), "arms": rows}
        output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
