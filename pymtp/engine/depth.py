"""How many drafts each, for the whole batch: all sequences of a round draft as many.

One sequence alone has the depth of its own policy. Several have the depth at which all of them together are expected to
bring the most tokens a second, by the acceptance of all their drafts and by what launches of so many rows take.
(SmartSpec, "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput", arXiv 2406.14066.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pymtp.depth import MAX_AUTO, Acceptance, AutoDepth, BatchCosts, Costs, Depth, FixedDepth
from pymtp.engine.rounds import OwnDepth, Writer

# The tuned numbers, see docs/tuning.md. Those that native/runtime/tuning.h has for one sequence have the same names.
MARGIN = 0.01  # how much better another depth must look to be taken, as a share of the rate
PROMISE = 0.07  # how much better a depth must be, if all goes well, to be tried
BUILD = 1.0  # what a round takes longer where none had as many rows before, as a share: its memory is new
DECAY = 0.96  # the weight of a round in acceptance, per round after it
DOUBT = 13.0  # right drafts that are imagined while nothing is drafted, for acceptance may have become better
LUCK = 1.0  # and where a depth is to be tried: positions that were seldom reached may be better than thought
# What drafting may lose, in plain rounds.
ALLOWANCE = 2.0  # of a new LLM
EARNED = 24.0  # the most that it grows to by what drafting gains
DEBT = 1.0  # what the best-looking depth may lose beyond it
EACH_ROUND = 0.003  # what a round adds
# What peeks may take, in plain rounds.
PEEKS = 0.005  # what a round adds
NEW_TEXT = 0.15  # what a new text adds, as its share of the texts
MOST_PEEKS = 2.0  # the most that is saved up


# seconds of the drafts and of the verification, by the number of sequences and the drafts of each
FirstRounds = Mapping[tuple[int, int], tuple[float, float]]


class BatchDepth:
    """Depths of the rounds of a context."""

    def __init__(self, n_ctx: int, most_rows: int, draft_tokens: int, costs: Costs | None) -> None:
        """
        most_rows: that a launch may have. draft_tokens: the most drafts of a sequence.
        costs: of rounds of one sequence, for depths that are chosen; None for a depth of draft_tokens always.
        """
        self._n_ctx, self._most_rows, self._draft_tokens = n_ctx, most_rows, draft_tokens
        self._costs = costs
        self._own = OwnDepth(n_ctx)
        self._last: dict[float, AutoDepth] = {}  # of the last request at each temperature: acceptance depends on it
        self._first: FirstRounds = {}
        self._shared: SharedDepth | None = None
        self._opened = 0  # sequences since the last round

    def begin(self, first: FirstRounds) -> None:
        """Rounds of several sequences that were timed before the first one."""
        self._first = first

    def open(self, temperature: float) -> Depth:
        """For a new sequence."""
        if self._costs is None:
            return FixedDepth(self._draft_tokens)
        self._opened += 1
        kind = min(2.0, round(temperature, 1))
        self._last[kind] = AutoDepth(self._costs, self._draft_tokens, after=self._last.get(kind))
        return self._last[kind]

    def choose(self, writers: Sequence[Writer]) -> int:
        """The drafts that each writer is to make."""
        opened, self._opened = self._opened, 0
        if len(writers) == 1:
            return self._own.choose(writers)
        top = min(self._draft_tokens, self._most_rows // len(writers) - 1, max(writer.room for writer in writers))
        # all rows of a launch must fit, those of padding too
        top = min(top, self._n_ctx - 1 - max(writer.n_past for writer in writers))
        top = max(0, top)
        if self._costs is None:
            return top
        if self._shared is None:
            self._shared = SharedDepth(self._costs, self._first)
        return self._shared.choose(writers, top, min(opened, len(writers)))

    def keep(self, writers: Sequence[Writer]) -> int:
        """How many of the drafts just made to verify."""
        if len(writers) == 1:
            return self._own.keep(writers)
        made = len(writers[0].made)
        return self._shared.keep(made) if self._shared else made

    def observe(self, writers: Sequence[Writer], drafted: int, draft_seconds: float, verify_seconds: float) -> None:
        """What came of the round that was chosen last."""
        if len(writers) == 1:
            self._own.observe(writers, drafted, draft_seconds, verify_seconds)
        elif self._shared and all(writer.error is None for writer in writers):
            for writer in writers:
                if drafted and isinstance(writer.depth, AutoDepth):
                    told = _told(writer)
                    writer.depth.observe_company(drafted, told, min(writer.right, told))
            self._shared.observe(writers, drafted, draft_seconds, verify_seconds)


def _mean_past(writers: Sequence[Writer]) -> int:
    return sum(writer.n_past for writer in writers) // len(writers)


def _told(writer: Writer) -> int:
    """Of its drafts, how many the target told of: those that were verified, and one more where all those are right."""
    return min(len(writer.made), len(writer.drafts) + (writer.right >= len(writer.drafts)))


def _expected_tokens(writers: Sequence[Writer], rates: Sequence[float]) -> list[float]:
    """Of a round of all writers, at each depth from 0, by how likely each draft is accepted."""
    tokens, together = [float(len(writers))], 1.0
    for i, rate in enumerate(rates):
        together *= rate
        tokens.append(tokens[-1] + together * sum(writer.room > i for writer in writers))
    return tokens


class SharedDepth:
    """The depth that brings the most tokens a second to all sequences of a round together.

    As AutoDepth for one sequence. A depth that may be better than the best known is tried. An allowance, in plain
    rounds, bounds what drafting may lose. Where plain rounds look best, there are peeks: one draft of each sequence is
    made, and none verified. The target's next tokens tell whether they were right, for the price of a draft step.
    """

    def __init__(self, single: Costs, first: FirstRounds) -> None:
        """single: costs of rounds of one sequence. first: rounds of several that were timed before."""
        self._costs = BatchCosts(single)
        self._acceptance: Acceptance | None = None  # of all texts: what a depth brings is their mean
        self._allowance = ALLOWANCE
        self._peeks = 1.0
        self._best = 0
        self._last = 0  # the depth of the round
        self._stay = False  # whether the next has it, too
        self._peeking = False
        self._most_rows = 1 + MAX_AUTO  # of a launch so far: as many were timed of one sequence
        self._plain = self._seconds = 0.0  # expected of a plain round, and of the one that was chosen
        for (n, drafted), (draft_seconds, verify_seconds) in first.items():
            self._costs.observe(n, 0, drafted, draft_seconds, 1 + drafted, verify_seconds, cold=False)
            self._most_rows = max(self._most_rows, n * (1 + drafted))

    def choose(self, writers: Sequence[Writer], top: int, opened: int) -> int:
        """The drafts that each is to make, `top` at most. opened: writers that were not there before."""
        acceptance = self._admit(len(writers), opened)
        self._peeking = False
        n, n_past = len(writers), _mean_past(writers)
        estimates = self._costs.rounds(n, top, n_past)
        if estimates is None:
            self._plain = self._last = 0
            return 0
        likely, least = estimates
        self._plain = likely[0]
        if self._stay and self._last <= top:
            self._stay = False
        else:
            tokens = _expected_tokens(writers, acceptance.rates(top))
            hoped = _expected_tokens(writers, acceptance.rates(top, LUCK))
            self._last = self._decide(n, tokens, likely, hoped, least)
            self._stay = self._is_cold(n, self._last)  # its first round tells nothing
        self._seconds = likely[self._last]
        if self._last == 0 and top > 0:
            step = self._costs.step_seconds(n, n_past) / self._plain
            if step <= self._peeks and self._hopeful(_expected_tokens(writers, acceptance.rates(top, DOUBT)), least):
                self._peeks -= step
                self._peeking = True
                return 1
        return self._last

    def keep(self, drafted: int) -> int:
        """How many of the drafts just made to verify."""
        return 0 if self._peeking else drafted

    def observe(self, writers: Sequence[Writer], drafted: int, draft_seconds: float, verify_seconds: float) -> None:
        """What came of the round that was chosen last."""
        assert self._acceptance is not None
        n, verified = len(writers), self.keep(drafted)
        cold = self._is_cold(n, verified)
        self._most_rows = max(self._most_rows, n * (1 + verified))
        self._costs.observe(n, _mean_past(writers), drafted, draft_seconds, 1 + verified, verify_seconds, cold)
        self._acceptance.observe(0, 0, tokens=1)  # a round of many tells of many
        if drafted:
            for writer in writers:
                told = _told(writer)
                self._acceptance.observe(told, min(writer.right, told), tokens=0)
        gain = 0.0
        if verified and self._plain:
            came = sum(1 + min(writer.right, len(writer.drafts)) for writer in writers) / n
            gain = came - (1 + BUILD * cold) * self._seconds / self._plain
        self._allowance = min(EARNED, max(-DEBT, self._allowance + gain + EACH_ROUND))
        self._peeks = min(MOST_PEEKS, self._peeks + PEEKS)

    def _admit(self, n: int, opened: int) -> Acceptance:
        """What is known of other texts tells less of new ones."""
        self._peeks = min(MOST_PEEKS, self._peeks + NEW_TEXT * opened / n)
        if self._acceptance is None or opened >= n:
            self._acceptance = Acceptance(self._acceptance)
        elif opened:
            self._acceptance.observe(0, 0, tokens=round(math.log(1 - opened / n) / math.log(DECAY)))
        return self._acceptance

    def _is_cold(self, n: int, depth: int) -> bool:
        return n * (1 + depth) > self._most_rows

    def _decide(
        self,
        n: int,
        tokens: Sequence[float],
        likely: Sequence[float],
        hoped: Sequence[float],
        least: Sequence[float],
    ) -> int:
        """The depth that looks best, or one to try. tokens, likely: expected of each depth, the seconds too. hoped,
        least: the tokens that there may be, and the seconds at least."""

        def loss(depth: int, seconds: float) -> float:
            """In plain rounds, of a round; of two where the first one is cold."""
            cold = self._is_cold(n, depth)
            return (1 + cold) * (seconds / likely[0] - tokens[depth] / n) + BUILD * cold * seconds / likely[0]

        depths = [0]  # at all costs: some depth must be had
        depths += [d for d in range(1, len(tokens)) if not self._is_cold(n, d) or loss(d, likely[d]) <= self._allowance]
        best = max(depths, key=lambda d: tokens[d] / likely[d])
        if (
            self._best in depths
            and tokens[best] * likely[self._best] <= (1 + MARGIN) * tokens[self._best] * likely[best]
        ):
            best = self._best
        self._best = best
        trial = max(depths, key=lambda d: hoped[d] / least[d])
        promising = hoped[trial] * likely[best] > (1 + PROMISE) * tokens[best] * least[trial]
        if promising and loss(trial, least[trial]) <= self._allowance:
            return trial
        return best if self._allowance >= -DEBT else 0

    def _hopeful(self, tokens: Sequence[float], least: Sequence[float]) -> bool:
        """Whether drafting may well be worth it by now: tokens of each depth, if acceptance has become better."""
        return any(tokens[d] * self._plain > tokens[0] * least[d] for d in range(1, len(tokens)))
