"""Which hidden state a head was trained on: both taps draft after the same prompts, and the target judges them.

Greedy text does not depend on the drafts, so both taps draft for the same tokens, and what differs is the head alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from pymtp.bench.prompts import KINDS, RANDOM, VARIANTS, prompt
from pymtp.bench.report import accepted_per_position
from pymtp.llm import LLM
from pymtp.model import TAPS, Model
from pymtp.sampling import SamplingParams
from pymtp.stats import Stats

DRAFTS = 3
RESAMPLES = 10_000
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Judgement:
    """What the taps came to.

    model, says: the file's name, and the tap that it has now. key: where it says so.
    stats: for each tap those of every prompt, in the same order.
    """

    model: str
    says: str
    key: str
    stats: dict[str, list[Stats]]

    def length(self, tap: str) -> float:
        """Mean accepted length: tokens per round, over all prompts."""
        rounds, accepted = _counts(self.stats[tap]).sum(axis=0)
        return float(1 + accepted / rounds)

    def interval(self) -> tuple[float, float]:
        """Where the first tap's mean accepted length minus the second's lies, with CONFIDENCE: a percentile bootstrap
        over prompts, whose tokens are not independent of each other (Efron and Tibshirani, "An Introduction to the
        Bootstrap", 1993, chapter 13)."""
        picked = np.random.default_rng(0).integers(0, len(self.stats[TAPS[0]]), (RESAMPLES, len(self.stats[TAPS[0]])))
        sums = [_counts(self.stats[tap])[picked].sum(axis=1) for tap in TAPS]
        first, second = (accepted / rounds for rounds, accepted in (s.T for s in sums))
        low, high = np.quantile(first - second, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return float(low), float(high)

    @property
    def wants(self) -> str | None:
        """The tap that this head was trained on; None where the difference is within the noise."""
        low, high = self.interval()
        return TAPS[0] if low > 0 else TAPS[1] if high < 0 else None


def _counts(stats: Sequence[Stats]) -> NDArray[np.float64]:
    return np.array([(s.rounds, s.accepted) for s in stats], dtype=float)


def judge(model: Model, *, tokens: int, n_threads: int | None = None) -> Judgement:
    """Generates `tokens` after each prompt of every kind but random tokens, with each tap.

    Raises InvalidRequestError for a model without head, as `LLM` does.
    """
    prompts = [prompt(model, kind, i) for kind in KINDS if kind != RANDOM for i in range(VARIANTS)]
    n_ctx = max(map(len, prompts)) + tokens
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    stats = {}
    for tap in TAPS:
        with LLM(model, n_ctx=n_ctx, n_threads=n_threads, draft_tokens=DRAFTS, tap=tap) as llm:
            stats[tap] = [completion.stats for completion in llm.generate(prompts, params)]
    return Judgement(model.path.name, model.tap, f"{model.architecture}.nextn_tap", stats)


def as_dict(judgement: Judgement) -> dict[str, object]:
    """All of it, ready for JSON."""
    taps = {
        tap: {
            "mean_accepted_length": judgement.length(tap),
            "accepted_per_position": accepted_per_position(stats),
            "prompts": [s.as_dict() for s in stats],
        }
        for tap, stats in judgement.stats.items()
    }
    return {
        "model": judgement.model,
        "says": judgement.says,
        "wants": judgement.wants,
        "key": judgement.key,
        "difference": {"confidence": CONFIDENCE, "interval": judgement.interval()},
        "taps": taps,
    }


def as_table(judgement: Judgement) -> Table:
    """A line for each tap."""
    table = Table("tap", "tokens per round", "accepted, by position", title=f"{DRAFTS} drafts per round, greedy")
    for tap, stats in judgement.stats.items():
        shares = " ".join(f"{share:.0%}" for share in accepted_per_position(stats))
        table.add_row(tap, f"{judgement.length(tap):.2f}", shares)
    return table


def in_words(judgement: Judgement) -> Iterator[str]:
    """The verdict, and how to follow it."""
    low, high = judgement.interval()
    difference = judgement.length(TAPS[0]) - judgement.length(TAPS[1])
    yield (
        f"{TAPS[0]} gives {difference:+.2f} tokens per round over {TAPS[1]}, "
        f"{CONFIDENCE:.0%} interval {low:+.2f} to {high:+.2f} ({len(judgement.stats[TAPS[0]])} prompts)"
    )
    wants = judgement.wants
    if wants is None:
        yield (
            f"the difference is within the noise: keep {judgement.says}, the tap that {judgement.model} runs with. "
            "More --tokens may tell. A head that is hardly ever right shows no difference"
        )
    elif wants == judgement.says:
        yield f"the head of {judgement.model} was trained on {wants} and runs with it: nothing to do"
    else:
        yield (
            f"the head of {judgement.model} was trained on {wants} but runs with {judgement.says}: give --tap {wants}, "
            f'in Python LLM(…, tap="{wants}"), or set the metadata key {judgement.key} = "{wants}" in the file '
            "(gguf-editor-gui of the gguf package adds it)"
        )
