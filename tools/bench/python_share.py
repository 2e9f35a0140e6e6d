"""Measure the share of Python in a round: the time between two verifications outside of native calls.

    python tools/bench/python_share.py
    python tools/bench/python_share.py -m MODEL.gguf -n 8 --depth 3

It prints medians by the number of requests and the depth. Run it on an idle machine. Only names that old builds also
have are used, so that they can be measured.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

import pymtp
import pymtp.context.context
from pymtp import LLM, Model, SamplingParams

# the native calls of a round that compute; all other native calls count as Python's time
COMPUTE = ("pymtp_pair_draft_tokens", "pymtp_pair_verify_tokens", "pymtp_pair_rewind")
PROMPT_TOKENS = 64


@dataclass
class TimedLibrary:
    """A stand-in for the native library that times the calls that compute."""

    library: Any
    native: float = 0.0  # seconds in these calls since the last verification
    rounds: list[tuple[float, float]] = field(default_factory=list)  # end of each verification, native seconds before

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.library, name)
        if name in COMPUTE:
            attribute = self._timed(attribute, ends_round="verify" in name)
        setattr(self, name, attribute)  # so that later look-ups are as fast as in the library
        return attribute

    def _timed(self, call: Callable[..., Any], *, ends_round: bool) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = call(*arguments)
            ended = time.perf_counter()
            self.native += ended - started
            if ends_round:
                self.rounds.append((ended, self.native))
                self.native = 0.0
            return result

        return timed

    def outside(self) -> list[tuple[float, float]]:
        """Return, for each round after the first, its seconds, and those outside of the calls that compute."""
        walls = [b - a for (a, _), (b, _) in zip(self.rounds, self.rounds[1:], strict=False)]
        return [(wall, wall - native) for wall, (_, native) in zip(walls, self.rounds[1:], strict=True)]


def measure(model: Model, n: int, depth: int, tokens: int, threads: int, *, streams: bool) -> tuple[float, float]:
    """Return the median seconds of a round of n requests, and of Python in it."""
    ids = random.Random(1)
    prompts = [[ids.randrange(256) for _ in range(PROMPT_TOKENS)] for _ in range(n)]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    sequences: dict[str, int] = {"n_seq_max": n} if n > 1 else {}
    timed = TimedLibrary(pymtp.context.context.lib)
    pymtp.context.context.lib = timed
    try:
        with LLM(model, n_ctx=PROMPT_TOKENS + tokens, n_threads=threads, draft_tokens=depth, **sequences) as llm:
            if streams:
                for _ in llm.stream(prompts[0], params):
                    pass
            else:
                llm.generate(prompts, params)
    finally:
        pymtp.context.context.lib = timed.library
    rounds = timed.outside()
    return statistics.median(wall for wall, _ in rounds), statistics.median(outside for _, outside in rounds)


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", help="GGUF file; the shipped model.")] = None,
    requests: Annotated[
        list[int] | None, typer.Option("--requests", "-n", help="Requests at once; default 1 and 8.")
    ] = None,
    depths: Annotated[
        list[int] | None, typer.Option("--depth", "-d", help="Drafts per round; default 0, 1, 3 and 7.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of each request.")] = 1000,
    threads: Annotated[int, typer.Option(help="Threads that compute.")] = 1,
) -> None:
    """Measure the share of Python in a round."""
    with Model(model) as loaded:
        for n in requests or [1, 8]:
            for streams in [False, True] if n == 1 else [False]:
                for depth in depths or [0, 1, 3, 7]:
                    wall, outside = measure(loaded, n, depth, tokens, threads, streams=streams)
                    print(
                        f"{n} {'streamed' if streams else 'at once':8}  depth {depth}  {outside * 1e6:6.1f} us of "
                        f"{wall * 1e6:7.0f} us a round, {outside / wall:5.1%}",
                        flush=True,
                    )


if __name__ == "__main__":
    typer.run(main)
