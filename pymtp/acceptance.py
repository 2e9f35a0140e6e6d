"""How likely the drafts of a round are accepted: by their position in the chain, and by the head's own confidence."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

DECAY = 0.97  # what a round still weighs a token later: text begins to repeat itself within some thirty tokens
LONG_DECAY = 0.99  # the same of a first draft in the long run: a hundred drafts, a request or a few
FIRST_GUESS = 0.65  # of first drafts, before anything is known: reports on Qwen3.5 and 3.6 heads say 0.6 to 0.8
FIRST_WEIGHT = 4.0  # drafts that the guess is worth: a useless head is soon found out
CARRY = 10.0  # drafts that what the last sequence found is worth to a new one, at most
WEIGHT = 3.0  # drafts that the long run, or the position before, is worth against what a position showed lately
FADE = 0.98  # a draft's acceptance as a share of the one before it, where it was not seen: chains get worse, slowly

BINS = (0.3, 0.6, 0.85, 0.97)  # borders between the head's probabilities, finer near 1, where most drafts are
BIN_DECAY = 0.99  # how a head errs depends on model and temperature, more than on the passage
BIN_WEIGHT = 2.0  # expected hits that "confidence says nothing" is worth in each bin
CERTAIN = 0.99  # no draft is surer than this


class Acceptance:
    """How likely each draft of a chain is accepted, given that the ones before it were; recent rounds weigh most."""

    def __init__(self, after: Acceptance | None = None) -> None:
        """after: an earlier sequence, whose long run is where this one starts, at the weight of a few drafts."""
        guess = after._long_hits / after._long_trials if after else FIRST_GUESS
        self._long_trials: float = min(CARRY, after._long_trials) if after else FIRST_WEIGHT
        self._long_hits: float = guess * self._long_trials
        rates = after.rates(len(after._trials))[1:] if after else []
        # of each position; the first starts from the long run alone
        self._trials: list[float] = [0.0, *(WEIGHT for _ in rates)]
        self._hits: list[float] = [0.0, *(WEIGHT * rate for rate in rates)]

    def fade(self, tokens: int) -> None:
        """So many tokens came: what was seen before them weighs less."""
        share = DECAY**tokens
        self._hits = [share * hits for hits in self._hits]
        self._trials = [share * trials for trials in self._trials]

    def observe(self, told: int, right: int, untold: Sequence[float] = ()) -> None:
        """A round: of the `told` drafts that the target told of, the first `right` were right.

        untold: of the drafts after them, how likely each was right if the one before it was. They count for what they
        probably were: without them only the promising ones would be left to count.
        """
        self.fade(1 + right)
        if told:
            self._long_hits = LONG_DECAY * self._long_hits + (right > 0)
            self._long_trials = LONG_DECAY * self._long_trials + 1
        for i in range(min(told, right + 1)):
            self._add(i, float(i < right), 1.0)
        weight = float(right == told)
        for i, likely in enumerate(untold, told):
            self._add(i, weight * likely, weight)
            weight *= likely

    def _add(self, i: int, hits: float, trials: float) -> None:
        while i >= len(self._trials):
            self._hits.append(0.0)
            self._trials.append(0.0)
        self._hits[i] += hits
        self._trials[i] += trials

    def rates(self, n: int, right: float = 0.0) -> list[float]:
        """For the first n drafts, the probability that each is accepted, given that those before it were.

        right: so many right drafts are imagined at every position, for how good it may turn out.
        """
        rates = []
        prior = self._long_hits / self._long_trials
        known = len(self._trials)
        for i in range(n):
            if i < known:
                prior = (self._hits[i] + WEIGHT * prior + right) / (self._trials[i] + WEIGHT + right)
            rates.append(prior)
            prior *= FADE
        return rates


def window_tokens(rates: Sequence[float]) -> list[float]:
    """Expected tokens of a round at each depth from 0 to len(rates): 1 + a1 + a1·a2 + … + a1·…·an.

    rates: a1, a2, … as `Acceptance.rates` has them. Leviathan, Kalman, Matias, "Fast Inference from Transformers via
    Speculative Decoding" (2023), equation 1, with an acceptance for each position in place of one for all.
    """
    tokens, together = [1.0], 1.0
    for rate in rates:
        together *= rate
        tokens.append(tokens[-1] + together)
    return tokens


class Calibration:
    """What the head's probability of its own draft says about acceptance, beyond what the position says: by which
    factor the drafts of a bin were better than their positions."""

    def __init__(self) -> None:
        self._hits = [BIN_WEIGHT] * (len(BINS) + 1)
        self._expected = [BIN_WEIGHT] * (len(BINS) + 1)

    def observe(self, confidence: float, expected: float, accepted: bool) -> None:
        """A draft whose predecessors were right. expected: how likely it was accepted, going by its position."""
        i = bisect_right(BINS, confidence)
        self._hits[i] += accepted + (1 - BIN_DECAY) * (BIN_WEIGHT - self._hits[i])
        self._expected[i] += expected + (1 - BIN_DECAY) * (BIN_WEIGHT - self._expected[i])

    @property
    def factors(self) -> list[float]:
        """Of each bin, from the least to the most confident."""
        return [hits / expected for hits, expected in zip(self._hits, self._expected, strict=True)]

    def factor(self, confidence: float) -> float:
        """By which a draft is likelier to be accepted than its position says."""
        i = bisect_right(BINS, confidence)
        return self._hits[i] / self._expected[i]

    def probability(self, confidence: float, expected: float) -> float:
        """How likely a draft is accepted, going by its position, which says `expected`, and the head's probability."""
        return min(CERTAIN, expected * self.factor(confidence))
