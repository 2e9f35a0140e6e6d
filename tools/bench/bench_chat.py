"""Compare `LLM.chat` with `LLM.generate` of the same prompt: does the parsing of a chat's answer cost speed?

    python tools/bench/bench_chat.py --pairs 30

The calls of a pair have one seed, give the same tokens, and take turns at being first. Their prompt is cached. Printed
are the medians over all pairs of the ratio chat ÷ generate: of the decoding speed, and of the speed of the whole call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pymtp import LLM, Completion

MESSAGES = [{"role": "user", "content": "Write a function that sorts a list of names."}]


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", help="The shipped model if not given.")] = None,
    pairs: Annotated[int, typer.Option(min=1)] = 30,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=2, help="Tokens of an answer.")] = 400,
    temperature: float = 0.7,
) -> None:
    """Measure, and print the medians."""
    decode, whole = [], []
    with LLM(model, n_ctx=4096) as llm:
        prompt = llm.chat(MESSAGES, max_tokens=1).prompt_token_ids
        for i in range(pairs + 1):
            keywords = {"max_tokens": tokens, "temperature": temperature, "seed": i, "ignore_eos": True}
            calls = [lambda: llm.chat(MESSAGES, **keywords), lambda: llm.generate(prompt, **keywords)]  # noqa: B023
            timed = [_timed(call) for call in (calls if i % 2 else calls[::-1])]
            (chat_seconds, chat), (seconds, done) = timed if i % 2 else timed[::-1]
            if chat.token_ids != done.token_ids:
                raise SystemExit(f"seed {i}: the tokens differ")
            if i:  # the first pair warms up
                decode.append(chat.stats.decode_tokens_per_second / done.stats.decode_tokens_per_second)
                whole.append(seconds / chat_seconds)
    for name, ratios in (("decoding", decode), ("whole call", whole)):
        print(f"{name}: chat ÷ generate {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def _timed(call: Callable[[], Completion]) -> tuple[float, Completion]:
    started = time.perf_counter()
    completion = call()
    return time.perf_counter() - started, completion


if __name__ == "__main__":
    typer.run(main)
