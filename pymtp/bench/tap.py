"""Which hidden state a head was trained on: both taps draft after the same prompts, and the target judges them.

Greedy text does not depend on the drafts, so both taps draft for the same tokens, and what differs is the head alone.

A head that fits reads the text in the hidden state. Where its drafts are worse than what the target itself guesses from
the last few tokens alone, it reads nothing there, with either tap: it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from pymtp.bench.prompts import KINDS, RANDOM, VARIANTS, prompt
from pymtp.bench.report import accepted_per_position
from pymtp.context.context import Context
from pymtp.llm import LLM
from pymtp.model.model import TAPS, Model
from pymtp.sampling import SamplingParams
from pymtp.stats import Stats

DRAFTS = 3
RESAMPLES = 10_000
CONFIDENCE = 0.99
SEEN = 8  # tokens that the target guesses from
GUESSES = 24  # a prompt
WITHOUT_ONE = 0.35  # norms are about 1 where they are stored as they are multiplied with, and about 0 without the 1
POOR = 0.6  # first drafts accepted; heads whose norms are right are mostly above


@dataclass(frozen=True)
class Judgement:
    """What the taps came to.

    model, says: the file's name, and the tap that it has now. key: where it says so.
    stats: for each tap those of every prompt, in the same order.
    guesses: for each prompt how many tokens the target was to guess from the SEEN before them alone, and how many it
        guessed. norms: of the head, the means of their weights.
    """

    model: str
    says: str
    key: str
    stats: dict[str, list[Stats]]
    guesses: Sequence[tuple[int, int]] = ()
    norms: Mapping[str, float] = field(default_factory=dict)

    def length(self, tap: str) -> float:
        """Mean accepted length: tokens per round, over all prompts."""
        rounds, accepted = _counts(self.stats[tap]).sum(axis=0)
        return float(1 + accepted / rounds)

    def interval(self) -> tuple[float, float]:
        """Where the first tap's mean accepted length minus the second's lies, with CONFIDENCE: a percentile bootstrap
        over prompts, whose tokens are not independent of each other (Efron and Tibshirani, "An Introduction to the
        Bootstrap", 1993, chapter 13)."""
        return _interval(_counts(self.stats[TAPS[0]]), _counts(self.stats[TAPS[1]]))

    def first_draft(self, tap: str) -> float:
        """The share of rounds whose first draft was accepted, of those with room for one; 0 without such a round."""
        rounds, accepted = _first_drafts(self.stats[tap]).sum(axis=0)
        return float(accepted / max(rounds, 1))

    @property
    def better(self) -> str:
        """The tap whose first drafts are accepted more often."""
        return max(TAPS, key=self.first_draft)

    @property
    def guessed(self) -> float:
        """The share of tokens that the target guesses from the SEEN before them; 0 where it was not asked."""
        return sum(right for _, right in self.guesses) / max(1, sum(asked for asked, _ in self.guesses))

    def over_guesses(self) -> tuple[float, float]:
        """Where the better tap's share of accepted first drafts minus the share of guesses lies, with CONFIDENCE; as
        `interval`. From -1 to 1 where nothing was drafted or guessed."""
        drafts, guesses = _first_drafts(self.stats[self.better]), np.array(self.guesses, dtype=float)
        return _interval(drafts, guesses) if len(guesses) and drafts[:, 0].all() else (-1.0, 1.0)

    @property
    def fits(self) -> bool:
        """Whether the head may belong to the model: with one of the taps it is not worse than guesses."""
        return self.over_guesses()[1] >= 0

    @property
    def without_one(self) -> list[str]:
        """Norms that look as if stored without the 1 that the model's RMSNorm adds."""
        poor = not self.fits or self.first_draft(self.better) < POOR
        return [name for name, mean in self.norms.items() if poor and 0 < abs(mean) < WITHOUT_ONE]

    @property
    def wants(self) -> str | None:
        """The tap that this head was trained on; None where the difference is within the noise, or neither is."""
        if not self.fits:
            return None
        low, high = self.interval()
        return TAPS[0] if low > 0 else TAPS[1] if high < 0 else None


def _counts(stats: Sequence[Stats]) -> NDArray[np.float64]:
    return np.array([(s.rounds, s.accepted) for s in stats], dtype=float)


def _first_drafts(stats: Sequence[Stats]) -> NDArray[np.float64]:
    """Of each prompt the rounds, but for a last one without room for a draft, and the first drafts accepted. Rounds of
    a head that gives no numbers have no drafts."""
    return np.array(
        [(len(s.depths) - (s.depths[-1:] == (0,)), sum(s.accepted_per_position[:1])) for s in stats], dtype=float
    )


def _interval(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[float, float]:
    """Where the difference of two ratios lies, of what is counted for each prompt: trials and successes."""
    picked = np.random.default_rng(0).integers(0, len(first), (RESAMPLES, len(first)))
    one, other = (counts[picked].sum(axis=1).T for counts in (first, second))
    low, high = np.quantile(one[1] / one[0] - other[1] / other[0], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


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
            completions = llm.generate(prompts, params)
            stats[tap] = [completion.stats for completion in completions]
    texts = [(prompt, completion.token_ids) for prompt, completion in zip(prompts, completions, strict=True)]
    guesses = _guesses(model, texts, n_threads)
    return Judgement(model.file_names, model.tap, f"{model.architecture}.nextn_tap", stats, guesses, model.head_norms)


def _guesses(
    model: Model, texts: Sequence[tuple[Sequence[int], Sequence[int]]], n_threads: int | None
) -> list[tuple[int, int]]:
    """For each prompt and its completion: tokens of that to guess, spread over it, and how many the target guessed."""
    found = []
    with Context(model, n_ctx=256, n_threads=n_threads) as context:
        for prompt, completion in texts:
            text = [*prompt, *completion]
            # the first token comes with the prompt, and is never drafted
            places = sorted({*np.linspace(len(prompt) + 1, len(text) - 1, GUESSES, dtype=int).tolist()})
            right = 0
            for place in places:
                context.clear()
                right += int(np.argmax(context.prefill(text[max(0, place - SEEN) : place]))) == text[place]
            found.append((len(places), right))
    return found


def as_dict(judgement: Judgement) -> dict[str, object]:
    """All of it, ready for JSON."""
    taps = {
        tap: {
            "mean_accepted_length": judgement.length(tap),
            "first_draft": judgement.first_draft(tap),
            "accepted_per_position": accepted_per_position(stats),
            "prompts": [s.as_dict() for s in stats],
        }
        for tap, stats in judgement.stats.items()
    }
    return {
        "model": judgement.model,
        "says": judgement.says,
        "wants": judgement.wants,
        "fits": judgement.fits,
        "guesses": {
            "tokens_seen": SEEN,
            "right": judgement.guessed,
            "difference": {"confidence": CONFIDENCE, "interval": judgement.over_guesses()},
        },
        "norms_without_one": judgement.without_one,
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
    if not judgement.fits:
        yield from _unfit(judgement)
        return
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
            "More --tokens may tell"
        )
    elif wants == judgement.says:
        yield f"the head of {judgement.model} was trained on {wants} and runs with it: nothing to do"
    else:
        yield (
            f"the head of {judgement.model} was trained on {wants} but runs with {judgement.says}: give --tap {wants}, "
            f'in Python LLM(…, tap="{wants}"), or set the metadata key {judgement.key} = "{wants}" in the file '
            "(gguf-editor-gui of the gguf package adds it)"
        )
    yield from _norms(judgement)


def _unfit(judgement: Judgement) -> Iterator[str]:
    low, high = judgement.over_guesses()
    shares = " and ".join(f"{judgement.first_draft(tap):.0%} with {tap}" for tap in TAPS)
    yield (
        f"the head of {judgement.model} does not fit: of its first drafts {shares} are right, and the model itself, "
        f"shown the last {SEEN} tokens alone, guesses {judgement.guessed:.0%} "
        f"({CONFIDENCE:.0%} interval of the difference {low:+.2f} to {high:+.2f}, {len(judgement.guesses)} prompts)"
    )
    if not any(s.drafted for stats in judgement.stats.values() for s in stats):
        yield "it made no draft: its logits are no finite numbers (NaN or infinity)"
    yield from _norms(judgement)
    yield "take another file, or decode without drafts: --draft-tokens 0, in Python LLM(…, draft_tokens=0)"


def _norms(judgement: Judgement) -> Iterator[str]:
    if judgement.without_one:
        means = ", ".join(f"{name} ({judgement.norms[name]:.2f})" for name in judgement.without_one)
        yield (
            f"these norms look as if stored without the 1 that the model's RMSNorm adds, by their means: {means}. "
            "A conversion with a llama.cpp that knows this head adds it"
        )
