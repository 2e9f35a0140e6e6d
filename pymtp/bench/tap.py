"""The test of the tap: which hidden state a head was trained on. Both taps draft after the same prompts.

Greedy text does not depend on the drafts, so both taps draft for the same tokens, and only the input of the head
differs.

A head that fits the model gets the text from the hidden state. If its drafts are worse, with either tap, than guesses
of the target from only the last few tokens, it gets nothing from the hidden state: it does not fit.
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
SEEN = 8  # tokens from which the target guesses the next one
GUESSES = 24  # per prompt
WITHOUT_ONE = 0.35  # the mean of a norm's weights is about 1 if stored with RMSNorm's 1, and about 0 without
POOR = 0.6  # share of accepted first drafts; heads with correct norms are mostly above


@dataclass(frozen=True)
class Judgement:
    """The result of the test.

    model: the file's name. current_tap: the tap that it runs with. key: the metadata key of the tap.
    stats: for each tap, those of every prompt in the same order.
    guesses: for each prompt, the number of tokens that the target guessed from the SEEN tokens before them, and how
        many were right. norms: means of the weights of the head's norms.
    """

    model: str
    current_tap: str
    key: str
    stats: dict[str, list[Stats]]
    guesses: Sequence[tuple[int, int]] = ()
    norms: Mapping[str, float] = field(default_factory=dict)

    def length(self, tap: str) -> float:
        """Return the mean accepted length of a tap: tokens per round over all prompts."""
        rounds, accepted = _counts(self.stats[tap]).sum(axis=0)
        return float(1 + accepted / rounds)

    def interval(self) -> tuple[float, float]:
        """Return the confidence interval of the first tap's mean accepted length minus the second's.

        It is a percentile bootstrap over prompts, as the tokens of a prompt are not independent (Efron and Tibshirani,
        "An Introduction to the Bootstrap", 1993, chapter 13).
        """
        return _interval(_counts(self.stats[TAPS[0]]), _counts(self.stats[TAPS[1]]))

    def first_draft(self, tap: str) -> float:
        """Return the share of accepted first drafts over all rounds with room for one; 0 without such rounds."""
        rounds, accepted = _first_drafts(self.stats[tap]).sum(axis=0)
        return float(accepted / max(rounds, 1))

    @property
    def better(self) -> str:
        """Return the tap whose first drafts are accepted more often."""
        return max(TAPS, key=self.first_draft)

    @property
    def guess_rate(self) -> float:
        """Return the share of right guesses; 0 without guesses."""
        return sum(right for _, right in self.guesses) / max(1, sum(total for total, _ in self.guesses))

    def interval_over_guesses(self) -> tuple[float, float]:
        """Return the confidence interval of the better tap's share of accepted first drafts minus the guess rate.

        It is computed as in `interval`. It is (-1, 1) if a prompt has no draft, or nothing was guessed.
        """
        drafts, guesses = _first_drafts(self.stats[self.better]), np.array(self.guesses, dtype=float)
        return _interval(drafts, guesses) if len(guesses) and drafts[:, 0].all() else (-1.0, 1.0)

    @property
    def fits(self) -> bool:
        """Tell whether the head may belong to the model: with the better tap it is not worse than guesses."""
        return self.interval_over_guesses()[1] >= 0

    @property
    def norms_without_one(self) -> list[str]:
        """Return the names of norms that seem to be stored without the 1 that the model's RMSNorm adds."""
        poor = not self.fits or self.first_draft(self.better) < POOR
        return [name for name, mean in self.norms.items() if poor and 0 < abs(mean) < WITHOUT_ONE]

    @property
    def trained_tap(self) -> str | None:
        """Return the tap that the head was trained on; None if the difference is noise, or the head does not fit."""
        if not self.fits:
            return None
        low, high = self.interval()
        return TAPS[0] if low > 0 else TAPS[1] if high < 0 else None


def _counts(stats: Sequence[Stats]) -> NDArray[np.float64]:
    return np.array([(s.rounds, s.accepted) for s in stats], dtype=float)


def _first_drafts(stats: Sequence[Stats]) -> NDArray[np.float64]:
    """Return for each prompt the number of rounds and of accepted first drafts.

    A last round without room for a draft is not counted. A head whose logits are no numbers makes no drafts.
    """
    return np.array(
        [(len(s.depths) - (s.depths[-1:] == (0,)), sum(s.accepted_per_position[:1])) for s in stats], dtype=float
    )


def _interval(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[float, float]:
    """Return the confidence interval of the difference of two ratios. Arrays: trials and successes of each prompt."""
    resampled = np.random.default_rng(0).integers(0, len(first), (RESAMPLES, len(first)))
    a, b = (counts[resampled].sum(axis=1).T for counts in (first, second))
    low, high = np.quantile(a[1] / a[0] - b[1] / b[0], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def judge(model: Model, *, tokens: int, n_threads: int | None = None) -> Judgement:
    """Test both taps: generate `tokens` after each prompt of every kind except random tokens.

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
    """Let the target guess tokens of each completion from the SEEN tokens before them.

    Return for each prompt the number of guesses and of right ones.
    """
    counts = []
    with Context(model, n_ctx=256, n_threads=n_threads) as context:
        for prompt, completion in texts:
            text = [*prompt, *completion]
            # the first token comes from the prefill, and is never drafted
            positions = sorted({*np.linspace(len(prompt) + 1, len(text) - 1, GUESSES, dtype=int).tolist()})
            n_right = 0
            for position in positions:
                context.clear()
                n_right += int(np.argmax(context.prefill(text[max(0, position - SEEN) : position]))) == text[position]
            counts.append((len(positions), n_right))
    return counts


def as_dict(judgement: Judgement) -> dict[str, object]:
    """Convert the result to a dictionary for JSON."""
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
        "says": judgement.current_tap,
        "wants": judgement.trained_tap,
        "fits": judgement.fits,
        "guesses": {
            "tokens_seen": SEEN,
            "right": judgement.guess_rate,
            "difference": {"confidence": CONFIDENCE, "interval": judgement.interval_over_guesses()},
        },
        "norms_without_one": judgement.norms_without_one,
        "key": judgement.key,
        "difference": {"confidence": CONFIDENCE, "interval": judgement.interval()},
        "taps": taps,
    }


def as_table(judgement: Judgement) -> Table:
    """Make a table with a line for each tap."""
    table = Table("tap", "tokens per round", "accepted, by position", title=f"{DRAFTS} drafts per round, greedy")
    for tap, stats in judgement.stats.items():
        shares = " ".join(f"{share:.0%}" for share in accepted_per_position(stats))
        table.add_row(tap, f"{judgement.length(tap):.2f}", shares)
    return table


def verdict(judgement: Judgement) -> Iterator[str]:
    """Yield lines of text: the result, and what to do."""
    if not judgement.fits:
        yield from _unfit_verdict(judgement)
        return
    low, high = judgement.interval()
    difference = judgement.length(TAPS[0]) - judgement.length(TAPS[1])
    yield (
        f"{TAPS[0]} gives {difference:+.2f} tokens per round over {TAPS[1]}, "
        f"{CONFIDENCE:.0%} interval {low:+.2f} to {high:+.2f} ({len(judgement.stats[TAPS[0]])} prompts)"
    )
    tap = judgement.trained_tap
    if tap is None:
        yield (
            f"the difference is within the noise: keep {judgement.current_tap}, the tap that {judgement.model} runs "
            "with. More --tokens may tell"
        )
    elif tap == judgement.current_tap:
        yield f"the head of {judgement.model} was trained on {tap} and runs with it: nothing to do"
    else:
        yield (
            f"the head of {judgement.model} was trained on {tap} but runs with {judgement.current_tap}: "
            f'give --tap {tap}, in Python LLM(…, tap="{tap}"), or set the metadata key {judgement.key} = "{tap}" '
            "in the file "
            "(gguf-editor-gui of the gguf package adds it)"
        )
    yield from _norm_verdict(judgement)


def _unfit_verdict(judgement: Judgement) -> Iterator[str]:
    low, high = judgement.interval_over_guesses()
    shares = " and ".join(f"{judgement.first_draft(tap):.0%} with {tap}" for tap in TAPS)
    yield (
        f"the head of {judgement.model} does not fit: of its first drafts {shares} are right, and the model itself, "
        f"shown the last {SEEN} tokens alone, guesses {judgement.guess_rate:.0%} "
        f"({CONFIDENCE:.0%} interval of the difference {low:+.2f} to {high:+.2f}, {len(judgement.guesses)} prompts)"
    )
    if not any(s.drafted for stats in judgement.stats.values() for s in stats):
        yield "it made no draft: its logits are no finite numbers (NaN or infinity)"
    yield from _norm_verdict(judgement)
    yield "take another file, or decode without drafts: --draft-tokens 0, in Python LLM(…, draft_tokens=0)"


def _norm_verdict(judgement: Judgement) -> Iterator[str]:
    if judgement.norms_without_one:
        means = ", ".join(f"{name} ({judgement.norms[name]:.2f})" for name in judgement.norms_without_one)
        yield (
            f"these norms look as if stored without the 1 that the model's RMSNorm adds, by their means: {means}. "
            "A conversion with a llama.cpp that knows this head adds it"
        )
