"""Compares draft_tokens="auto" with each fixed depth: first and later answers, several requests, temperatures, prompts.

    python tools/bench/bench_auto.py [MODEL.gguf …] [--requests 1,2,4,8] [--repeats 10] [--json FILE]

Each setting is a model, a number of requests, a temperature and a kind of prompts: `text` is random modules, a
kind of text that the shipped model was trained on, `random` is random tokens. A turn gives each arm (each depth from 0,
and auto) the same prompts, one arm directly after the other and in another order each turn. `first` is the first answer
of a new LLM. `later` answers come from LLMs that live for all turns; their first answer does not count. The table has
the median tokens/s of auto relative to plain decoding and to the best fixed depth of the same turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.new_texts import new_prompts

from pymtp import LLM, Model, SamplingParams
from pymtp.model.model import demo_model

Arm = int | Literal["auto"]
PROMPT_TOKENS = 64


def make_prompts(model: Model, kind: str, n: int) -> list[list[int]]:
    """Make n prompts of PROMPT_TOKENS tokens."""
    if kind == "text":
        return [model.tokenize(text)[:PROMPT_TOKENS] for text in new_prompts(n)]
    luck = Random(0)
    return [[luck.randrange(1, model.n_vocab) for _ in range(PROMPT_TOKENS)] for _ in range(n)]


class Setting:
    """One line of the table: the rates of all arms in first and in later answers."""

    def __init__(self, model: Model, requests: int, temperature: float, kind: str, options: argparse.Namespace) -> None:
        """Prepare the prompts and LLMs of a setting."""
        self.model, self.requests, self.temperature, self.kind, self.options = (
            model, requests, temperature, kind, options,
        )  # fmt: skip
        self.prompts = make_prompts(model, kind, requests * (2 * options.repeats + 1))
        self.rates: dict[str, dict[Arm, list[float]]] = {"first": {}, "later": {}}
        self.depths: Counter[int] = Counter()

    def new_llm(self, arm: Arm) -> LLM:
        return LLM(
            self.model, n_ctx=PROMPT_TOKENS + self.options.tokens + 8, n_seq_max=self.requests,
            n_threads=self.options.threads, draft_tokens=arm, cache_prompt=False,
        )  # fmt: skip

    def answer(self, llm: LLM, turn: int) -> tuple[float, Counter[int]]:
        """Answer the prompts of a turn. Return the tokens/s, and the number of rounds by depth."""
        prompts = self.prompts[turn * self.requests :][: self.requests]
        params = SamplingParams(self.options.tokens, temperature=self.temperature, seed=turn, ignore_eos=True)
        started = time.perf_counter()
        completions = llm.generate(prompts, params)
        seconds = time.perf_counter() - started
        depths: Counter[int] = Counter()
        for completion in completions:
            depths.update(completion.stats.depths)
        return sum(len(one.token_ids) for one in completions) / seconds, depths

    def measure(self, arms: Sequence[Arm]) -> None:
        luck, repeats = Random(1), self.options.repeats
        order = list(arms)
        for turn in range(repeats):
            luck.shuffle(order)
            for arm in order:
                with self.new_llm(arm) as llm:
                    self.rates["first"].setdefault(arm, []).append(self.answer(llm, turn)[0])
        with ExitStack() as stack:
            llms = {arm: stack.enter_context(self.new_llm(arm)) for arm in arms}
            for turn in range(repeats + 1):
                luck.shuffle(order)
                for arm in order:
                    rate, depths = self.answer(llms[arm], turn)
                    if turn:
                        self.rates["later"].setdefault(arm, []).append(rate)
                        if arm == "auto":
                            self.depths += depths

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for answers, rates in self.rates.items():
            if rates:
                median = {arm: statistics.median(found) for arm, found in rates.items()}
                fixed = {arm: rate for arm, rate in median.items() if arm != "auto"}
                best = max(fixed, key=fixed.__getitem__)
                rows.append(
                    {
                        "model": self.model.path.name,
                        "requests": self.requests,
                        "T": self.temperature,
                        "prompts": self.kind,
                        "answers": answers,
                        "plain": round(median[0]),
                        "auto": round(median["auto"]),
                        "best depth": best,
                        "best / plain": median[best] / median[0],
                        "auto / plain": median_ratio(rates["auto"], rates[0]),
                        "auto / best": median_ratio(rates["auto"], rates[best]),
                        "depths": dict(sorted(self.depths.items())) if answers == "later" else {},
                    }
                )
        return rows


def median_ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(rates, others, strict=True))


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def main() -> None:
    """Measure all settings, and print the table line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=[demo_model()])
    parser.add_argument("--requests", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--temperatures", type=numbers, default=[0.0, 0.7, 1.0])
    parser.add_argument("--prompts", default="text,random")
    parser.add_argument("--depths", type=numbers, default=[0, 1, 2, 3, 4, 5, 6, 7])
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for path in options.models:
        with Model(path) as model:
            for requests in options.requests:
                for temperature in options.temperatures:
                    for kind in options.prompts.split(","):
                        setting = Setting(model, int(requests), temperature, kind, options)
                        setting.measure([*map(int, options.depths), "auto"])
                        for row in setting.rows():
                            if not rows:
                                print("  ".join(row))
                            rows.append(row)
                            print(
                                "  ".join(
                                    f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()
                                ),
                                flush=True,
                            )
                        if options.json:
                            options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
