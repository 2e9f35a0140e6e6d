"""The test of the tap: it finds the hidden state of the target that a head was trained on.

A tap is the hidden state that the head gets: the one before or the one after the target's final norm. The test
generates greedily after the same prompts with both taps. Greedy text does not depend on the drafts, so both taps draft
for the same tokens, and only the input of the head differs.

The test also finds a head that does not belong to the model. A head that belongs to it learns about the text so far
from the hidden state. If, with both taps, its drafts are accepted less often than guesses that the target makes from
only the last few tokens are right, the head does not use the hidden state, and so does not fit the model.
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
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.model.model import TAPS, Model
from pymtp.sampling import SamplingParams
from pymtp.stats import Stats

DRAFTS = 3  # drafts per round
RESAMPLES = 10_000  # samples of the bootstrap
CONFIDENCE = 0.99
SEEN = 8  # number of tokens from which the target guesses the next one
GUESSES = 24  # most guesses per prompt
# A norm with a lower mean weight seems to be stored without the 1 that RMSNorm adds. The mean is about 1 with it, and
# about 0 without.
WITHOUT_ONE = 0.35
POOR = 0.6  # norms are checked only if a smaller share of first drafts is accepted; most heads are above


@dataclass(frozen=True)
class Judgement:
    """The result of the test.

    model: name of the model's file.
    current_tap: the tap that the model uses now.
    key: the metadata key that sets the tap.
    stats: for each tap, the figures of each prompt, in the same order.
    guesses: for each prompt, the number of tokens that the target guessed from the SEEN tokens before them, and the
        number of right guesses.
    norms: mean weight of each norm of the head, by its name.
    """

    model: str
    current_tap: str
    key: str
    stats: dict[str, list[Stats]]
    guesses: Sequence[tuple[int, int]] = ()
    norms: Mapping[str, float] = field(default_factory=dict)

    def length(self, tap: str) -> float:
        """Return the mean accepted length with a tap: generated tokens per round over all prompts."""
        rounds, accepted = _counts(self.stats[tap]).sum(axis=0)
        return float(1 + accepted / rounds)

    def interval(self) -> tuple[float, float]:
        """Return the confidence interval of the first tap's mean accepted length minus the second tap's.

        It comes from a percentile bootstrap that resamples prompts, because the tokens of one prompt are not
        independent (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13).
        """
        return _interval(_counts(self.stats[TAPS[0]]), _counts(self.stats[TAPS[1]]))

    def first_draft(self, tap: str) -> float:
        """Return the share of rounds whose first draft was accepted, out of those that could draft; 0 without any."""
        rounds, accepted = _first_drafts(self.stats[tap]).sum(axis=0)
        return float(accepted / max(rounds, 1))

    @property
    def better(self) -> str:
        """Return the tap whose first drafts are accepted more often."""
        return max(TAPS, key=self.first_draft)

    @property
    def guess_rate(self) -> float:
        """Return the share of the target's guesses that were right; 0 without guesses."""
        return sum(right for _, right in self.guesses) / max(1, sum(total for total, _ in self.guesses))

    def interval_over_guesses(self) -> tuple[float, float]:
        """Return the confidence interval of the better tap's share of accepted first drafts minus the guess rate.

        The interval is computed as in `interval`. If a prompt has no draft or nothing was guessed, it is (-1, 1), which
        leaves everything open.
        """
        drafts, guesses = _first_drafts(self.stats[self.better]), np.array(self.guesses, dtype=float)
        return _interval(drafts, guesses) if len(guesses) and drafts[:, 0].all() else (-1.0, 1.0)

    @property
    def fits(self) -> bool:
        """Return whether the head may belong to the model: its drafts are not clearly worse than guesses.

        The drafts are those with the better tap.
        """
        return self.interval_over_guesses()[1] >= 0

    @property
    def norms_without_one(self) -> list[str]:
        """Return the names of the head's norms that seem to be stored without the 1 that the model's RMSNorm adds.

        The list is empty for a head that fits and whose first drafts are accepted often enough.
        """
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
    """Return, for each prompt, the number of rounds, and how many of their first drafts were accepted.

    The last round is not counted if it made no draft, because max_tokens may have left no room for one. Earlier rounds
    count even without drafts: a head whose logits are NaN or infinite makes none.
    """
    return np.array(
        [(len(s.depths) - (s.depths[-1:] == (0,)), sum(s.accepted_per_position[:1])) for s in stats], dtype=float
    )


def _interval(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[float, float]:
    """Return the confidence interval of the difference of two ratios.

    first, second: for each prompt, the denominator and the numerator of the ratio, such as rounds and accepted drafts.
    """
    resampled = np.random.default_rng(0).integers(0, len(first), (RESAMPLES, len(first)))
    a, b = (counts[resampled].sum(axis=1).T for counts in (first, second))
    low, high = np.quantile(a[1] / a[0] - b[1] / b[0], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def judge(model: Model, *, tokens: int, n_threads: int | None = None) -> Judgement:
    """Test both taps: generate up to `tokens` tokens after each prompt of every kind except RANDOM.

    A text ends where the model ends it, since no head was trained beyond its end. Prompts after which it ends at once
    with either tap are left out: on a GPU, rounding may end one tap's text earlier.

    Raises InvalidRequestError for a model without head, as `LLM` does, and if all prompts are left out.
    """
    prompts = [prompt(model, kind, i) for kind in KINDS if kind != RANDOM for i in range(VARIANTS)]
    n_ctx = max(map(len, prompts)) + tokens
    params = SamplingParams(max_tokens=tokens)
    by_tap = []
    for tap in TAPS:
        with LLM(model, n_ctx=n_ctx, n_threads=n_threads, draft_tokens=DRAFTS, tap=tap) as llm:
            by_tap.append(llm.generate(prompts, params))
    # the intervals compare the figures of the same prompt
    kept = [
        (read, each)
        for read, *each in zip(prompts, *by_tap, strict=True)
        if all(len(done.token_ids) > 1 for done in each)
    ]
    if not kept:
        raise InvalidRequestError(
            f"{model.file_names} ends its text at once after each prompt: there is nothing to draft"
        )
    stats = {tap: [each[i].stats for _, each in kept] for i, tap in enumerate(TAPS)}
    guesses = _guesses(model, [(read, each[-1].token_ids) for read, each in kept], n_threads)
    return Judgement(model.file_names, model.tap, f"{model.architecture}.nextn_tap", stats, guesses, model.head_norms)


def _guesses(
    model: Model, texts: Sequence[tuple[Sequence[int], Sequence[int]]], n_threads: int | None
) -> list[tuple[int, int]]:
    """Let the target guess some tokens of each completion, each from only the SEEN tokens before it.

    Return, for each prompt, the number of guesses and the number of right guesses.

    texts: each prompt and its completion, as tokens.
    """
    counts = []
    with Context(model, n_ctx=256, n_threads=n_threads) as context:
        for prompt, completion in texts:
            text = [*prompt, *completion]
            # without the first token of the completion: the prefill yields it, so the head never drafts it
            positions = sorted({*np.linspace(len(prompt) + 1, len(text) - 1, GUESSES, dtype=int).tolist()})
            n_right = 0
            for position in positions:
                context.clear()
                n_right += int(np.argmax(context.prefill(text[max(0, position - SEEN) : position]))) == text[position]
            counts.append((len(positions), n_right))
    return counts


def as_dict(judgement: Judgement) -> dict[str, object]:
    """Convert the result of the test to a dictionary for JSON."""
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
    """Make a table of the acceptance, with a line for each tap."""
    table = Table("tap", "tokens per round", "accepted, by position", title=f"{DRAFTS} drafts per round, greedy")
    for tap, stats in judgement.stats.items():
        shares = " ".join(f"{share:.0%}" for share in accepted_per_position(stats))
        table.add_row(tap, f"{judgement.length(tap):.2f}", shares)
    return table


def verdict(judgement: Judgement) -> Iterator[str]:
    """Yield lines of text for the user: the result of the test, and what to do next."""
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
            "with. More --tokens may show a difference"
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
        f"the head of {judgement.model} does not fit: of its first drafts {shares} are right, but the model itself "
        f"guesses {judgement.guess_rate:.0%} of tokens right from only the last {SEEN} tokens "
        f"({CONFIDENCE:.0%} interval of the difference {low:+.2f} to {high:+.2f}, {len(judgement.guesses)} prompts)"
    )
    if not any(s.drafted for stats in judgement.stats.values() for s in stats):
        yield "the head made no draft: its logits are not finite numbers (NaN or infinity)"
    yield from _norm_verdict(judgement)
    yield "take another file, or decode without drafts: --draft-tokens 0, in Python LLM(…, draft_tokens=0)"


def _norm_verdict(judgement: Judgement) -> Iterator[str]:
    if judgement.norms_without_one:
        means = ", ".join(f"{name} ({judgement.norms[name]:.2f})" for name in judgement.norms_without_one)
        yield (
            f"the means of these norms suggest that they are stored without the 1 that the model's RMSNorm adds: "
            f"{means}. A conversion with a llama.cpp that supports this head adds the 1"
        )
