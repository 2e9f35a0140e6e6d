"""How many drafts next: as many as were asked for, or as bring the most tokens a second.

Nothing here looks at a clock or draws a random number: the same rounds lead to the same depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymtp.acceptance import BINS, CERTAIN, Acceptance, Calibration, window_tokens
from pymtp.costs import Costs

MAX_AUTO = 8  # the most drafts of "auto": each takes a snapshot of the recurrent states
MARGIN = 0.01  # how much better another depth must look to be taken: a little, or near ties would flap
PROMISE = 0.05  # how much better a depth that is not known must be, if all goes well, to be tried
DOUBT = 10.0  # while nothing is drafted, drafts imagined to be right, for acceptance may be better than was seen
PAUSE_SECONDS, MOST_PAUSE = 0.012, 32  # between two looks, each of which takes up to 0.1 ms; and rounds
SURPRISE = 2.0  # so many tokens more or fewer than expected since the last look bring the next one at once
CLOSE = 1.15  # where drafting gains less, plain decoding is timed again,
RECHECK, MOST_RECHECK = 8, 512  # after so many rounds at first, then twice as many each time, up to so many
# What drafting may lose against plain decoding, in its tokens. Where no draft is ever accepted, 3% of 256 are 7.7.
ALLOWANCE = 2.5  # of a new LLM
EARNED = 8.0  # the most, what drafting gained before included
DEBT = 3.0  # what a depth that looks best may lose beyond that
EACH_REQUEST, EACH_TOKEN = 0.5, 0.006  # what comes on top, and of the latter as much again for peeks alone
TIMED = 4  # of so many plain rounds one is timed
WARM = 2  # rounds of a kind before those that are timed: the first builds graphs, and both find cold caches


class Depth(Protocol):
    """Chooses the depth of each round, and hears what came of it."""

    def choose(self, room: int, n_past: int) -> int:
        """The drafts to make now. room: the most that can be used. n_past: tokens that the context holds."""
        ...

    def keep(self, confidences: Sequence[float]) -> int:
        """How many of the drafts just made to verify. confidences: the head's probability of each."""
        ...

    def observe(
        self,
        drafted: int,
        verified: int,
        right: int,
        draft_seconds: float,
        verify_seconds: float,
        confidences: Sequence[float],
    ) -> None:
        """What came of a round: drafts made and verified, and what both phases took.

        right: the drafts before the first wrong one, as far as the target told: where all that were verified are right,
            it told of the one after them too.
        """
        ...


class FixedDepth:
    """The same depth every round, as far as there is room."""

    def __init__(self, n: int) -> None:
        self._n = n

    def choose(self, room: int, n_past: int) -> int:
        return max(0, min(self._n, room))

    def keep(self, confidences: Sequence[float]) -> int:
        return len(confidences)

    def observe(self, *_: object) -> None:
        """Nothing that comes of a round changes it."""


class AutoDepth:
    """The depth that brings the most tokens a second, for one sequence.

    A depth is worth the expected tokens of its round by the seconds of its round. One that may be better than the best
    known is tried. Whatever is drafted, an allowance goes down by what it loses against plain decoding, up by what it
    gains: where it is used up, there is plain decoding, until a small share of that has made up for it.

    Where plain decoding looks best, there are peeks: a draft is made, and verified only where the head is sure enough.
    The target's next token tells whether it was right all the same, for the price of a draft step.
    """

    def __init__(self, costs: Costs, most: int = MAX_AUTO, *, after: AutoDepth | None = None) -> None:
        """
        costs: of the model and its context, shared by all sequences.
        most: the most tokens to draft a round.
        after: an earlier sequence, which this one may resemble at first.
        """
        if after:
            after._look_back()
        self._costs = costs
        self._most = most
        self._acceptance: Acceptance = Acceptance(after._acceptance if after else None)
        self._calibration: Calibration = after._calibration if after else Calibration()
        self._allowance: float = min(EARNED, after._allowance + EACH_REQUEST) if after else ALLOWANCE
        self._peeks: float = after._peeks if after else 0.0  # what peeks may cost when it is used up, in tokens
        self._best: int = after._best if after else 0  # the depth that looks best
        self._rate = 0.0  # its tokens a second
        self._trying = False  # whether the current round tries another, whatever the head says
        self._tokens: Sequence[float] = [1.0]  # expected of a round, by drafts verified; more than these came since
        self._surprise = 0.0
        self._last = 0  # the depth of the last look, and rounds to come that keep to it
        self._steady = 0
        # of each draft, at the last look: how likely it was right, and the tokens that its row would bring elsewhere
        self._expected: list[float] = []
        self._prices: list[float] = []
        self._sure = 0.0  # at this confidence all are worth verifying
        # rounds with drafts since the last look, as observe hears of them, each after so many tokens
        self._n_past = 0
        self._seen: list[tuple[int, int, int, int, float, float, Sequence[float]]] = []
        self._rest = 0  # plain rounds to come, whatever happens, and those since the last look
        self._rested = 0
        self._before = (0, 0)  # drafts made and verified in the round before those, and how often in a row
        self._run = 0
        self._drafting = 0  # rounds with drafts since the last one without
        self._recheck: int = after._recheck if after else RECHECK

    def choose(self, room: int, n_past: int) -> int:
        """The depth of the next round. room: the most drafts allowed now. n_past: tokens that the context holds."""
        self._n_past = n_past
        if self._rest > 0:
            self._rest -= 1
            return 0
        top = min(room, self._most)
        if top <= 0 or not self._costs.known:
            return 0
        if self._steady > 0 and self._last <= top:
            self._steady -= 1
            return self._last
        self._look_back()
        self._costs.n_past = n_past
        seconds, least = self._costs.rounds(top)
        self._tokens = tokens = window_tokens(self._acceptance.rates(top))
        self._surprise = 0.0
        rates = [t / s for t, s in zip(tokens, seconds, strict=True)]
        best = max(range(top + 1), key=rates.__getitem__)
        if self._best > top:
            self._best = best
        if rates[best] > (1 + MARGIN) * rates[self._best]:
            self._best = best
        self._rate = rates[self._best]
        n = self._trial(tokens, seconds, least)
        trying = n != self._best
        if n == 0:
            self._rest = WARM if trying else self._pause(seconds[0])
            return 0
        # where plain decoding looks best, a peek: its next token tells whether the draft was right, verified or not
        peek = trying and self._best == 0 and not self._costs.missing(n)
        self._trying = trying and not peek
        # a trial must be affordable; what looks best may go into debt, for it may be bad luck
        missing = -DEBT - self._allowance
        if peek:
            price = self._costs.draft_seconds(n) / seconds[0]
            missing = min(price - self._allowance, price - self._peeks)
        elif trying:
            missing = least[n] / seconds[0] - tokens[n] - self._allowance
        if missing > 0:
            self._rest = int(missing / EACH_TOKEN)
            return 0
        if peek:
            self._peeks = 0.0
        timings = self._costs.missing(n)
        self._steady = (WARM + timings - 1 if timings else 0) if trying else self._pause(seconds[n])
        self._last = n
        self._expected = self._acceptance.rates(n)
        self._prices = [
            self._rate * (self._costs.verify_seconds(1 + i) - self._costs.verify_seconds(i)) for i in range(1, n + 1)
        ]
        factors = self._calibration.factors
        floors = [min(factors[b:]) for b in range(len(factors))]
        self._sure = next((low for low, f in zip((0.0, *BINS), floors, strict=True) if self._worth([f] * n) == n), 2.0)
        return n

    def _trial(self, tokens: Sequence[float], seconds: Sequence[float], least: Sequence[float]) -> int:
        """A depth to try now, or the best one. Of each depth, tokens that are expected, seconds that a round may take,
        and the least that it may."""
        top, promise = len(tokens) - 1, (1 + PROMISE) * self._rate
        if self._best == 0:
            # any depth tells about acceptance, so that the cheapest will do
            hoped = window_tokens(self._acceptance.rates(top, right=DOUBT))
            probe = int(any(h > promise * s for h, s in zip(hoped[1:], least[1:], strict=True)))
        else:
            probe = self._best
        for n in range(1, min(top, 2 * self._costs.deepest + 1) + 1):  # one doubling after the other
            if least[n] < seconds[n] and tokens[n] > promise * least[n]:
                probe, promise = n, tokens[n] / least[n]
        if self._drafting >= self._recheck and self._rate * seconds[0] < CLOSE:
            self._recheck = min(MOST_RECHECK, 2 * self._recheck)
            return 0
        return probe

    def keep(self, confidences: Sequence[float]) -> int:
        """How many of the drafts just made to verify. confidences: the head's probability of each."""
        if self._trying or not self._prices or min(confidences, default=2.0) >= self._sure:
            return len(confidences)
        return self._worth([self._calibration.factor(confidence) for confidence in confidences])

    def _worth(self, factors: Sequence[float]) -> int:
        """How many drafts bring the most tokens beyond those that their rows would bring elsewhere, at the last look.
        factors: by which each is likelier than its position says."""
        best, worth, most, together = 0, 0.0, 0.0, 1.0
        for i, (factor, expected, price) in enumerate(zip(factors, self._expected, self._prices, strict=False)):
            together *= min(CERTAIN, factor * expected)
            worth += together - price
            if worth >= most:
                best, most = i + 1, worth
        return best

    def observe(
        self,
        drafted: int,
        verified: int,
        right: int,
        draft_seconds: float,
        verify_seconds: float,
        confidences: Sequence[float],
    ) -> None:
        """What came of a round: how many drafts were made, verified and, as far as is known, right, what both took, and
        the head's probability of each draft made, or nothing where that is not known."""
        if drafted == 0:
            if self._rested % TIMED == WARM or not self._costs.known:
                self._costs.observe(self._n_past, 0, 0.0, 1, verify_seconds, self._rested >= WARM)
            self._rested += 1
            self._drafting = 0
            return
        self._drafting += 1
        self._surprise += 1 + min(right, verified) - self._tokens[verified]
        if right == 0 if self._trying else abs(self._surprise) > SURPRISE:
            self._steady = 0
        # looked at all together: one by one, each would find the processor's caches full of the model
        self._seen.append((self._n_past, drafted, verified, right, draft_seconds, verify_seconds, confidences))

    def _pause(self, seconds: float) -> int:
        return min(MOST_PAUSE, int(PAUSE_SECONDS / seconds))

    def _look_back(self) -> None:
        """Learns from the rounds since the last look."""
        costs = self._costs
        for n_past, drafted, verified, right, draft_seconds, verify_seconds, confidences in self._seen:
            self._run = self._run + 1 if self._before == (drafted, verified) else 0
            self._before = (drafted, verified)
            costs.observe(n_past, drafted, draft_seconds, 1 + verified, verify_seconds, self._run >= WARM)
            told = min(drafted, verified + (right >= verified))
            rates = self._acceptance.rates(drafted)
            untold: Sequence[float] = rates[told:]
            if confidences:
                untold = [self._calibration.probability(c, r) for c, r in zip(confidences[told:], untold, strict=True)]
                for i in range(min(told, right + 1)):
                    self._calibration.observe(confidences[i], rates[i], i < right)
            self._acceptance.observe(told, right, untold)
            if costs.known:
                seconds = costs.draft_seconds(drafted) + costs.verify_seconds(1 + verified)
                self._earn(1 + min(right, verified) - seconds / costs.round_seconds(0), 1)
        self._seen.clear()
        if self._rested:
            self._before, self._run = (0, 0), 0
            self._acceptance.fade(self._rested)
            self._earn(0.0, self._rested)
            self._rested = 0

    def _earn(self, gain: float, rounds: int) -> None:
        self._allowance = min(EARNED, max(-DEBT, self._allowance + gain + EACH_TOKEN * rounds))
        self._peeks = min(1.0, self._peeks + EACH_TOKEN * rounds)
