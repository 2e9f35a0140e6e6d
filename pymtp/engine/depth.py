"""How many drafts each, for the whole batch: all sequences of a round draft as many.

One sequence alone has the depth of its own policy. Several have the depth at which all of them together are expected to
bring the most tokens a second: acceptance is each sequence's own, costs are those measured for so many sequences.
(SmartSpec, "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput", arXiv 2406.14066.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pymtp.depth import AutoDepth, Costs, Depth, FixedDepth
from pymtp.engine.rounds import OwnDepth, Writer

# As MARGIN, PROMISE, STAY and WARM in native/runtime/tuning.h, for one sequence. Not tuned for several.
MARGIN = 0.01
PROMISE = 0.07
STAY = 2
WARM = 2
# Plain rounds of several sequences until one draft is tried again: acceptance may have become better.
PROBE = 64


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
        self._shared: dict[int, SharedDepth] = {}  # by the number of sequences

    def open(self, temperature: float) -> Depth:
        """For a new sequence."""
        if self._costs is None:
            return FixedDepth(self._draft_tokens)
        kind = min(2.0, round(temperature, 1))
        self._last[kind] = AutoDepth(self._costs, self._draft_tokens, after=self._last.get(kind))
        return self._last[kind]

    def choose(self, writers: Sequence[Writer]) -> int:
        """The drafts that each writer is to make."""
        if len(writers) == 1:
            return self._own.choose(writers)
        top = min(self._draft_tokens, self._most_rows // len(writers) - 1, max(writer.room for writer in writers))
        # all rows of a launch must fit, those of padding too
        top = min(top, self._n_ctx - 1 - max(writer.n_past for writer in writers))
        if top <= 0:
            return 0
        if self._costs is None:
            return top
        return self._of(len(writers)).choose(_expected_tokens(writers, top), _mean_past(writers))

    def keep(self, writers: Sequence[Writer]) -> int:
        """How many of the drafts just made to verify."""
        return self._own.keep(writers) if len(writers) == 1 else len(writers[0].made)

    def observe(self, writers: Sequence[Writer], drafted: int, draft_seconds: float, verify_seconds: float) -> None:
        """What came of the round that was chosen last."""
        if len(writers) == 1:
            self._own.observe(writers, drafted, draft_seconds, verify_seconds)
        elif self._costs is not None and all(writer.error is None for writer in writers):
            for writer in writers:
                if drafted and isinstance(writer.depth, AutoDepth):
                    told = min(drafted, len(writer.drafts) + (writer.right >= len(writer.drafts)))
                    writer.depth.observe_company(drafted, told, min(writer.right, told))
            right = sum(writer.right for writer in writers)
            self._of(len(writers)).observe(_mean_past(writers), drafted, right, draft_seconds, verify_seconds)

    def _of(self, n: int) -> SharedDepth:
        if n not in self._shared:
            assert self._costs is not None
            self._shared[n] = SharedDepth(n, self._draft_tokens, self._costs)
        return self._shared[n]


def _mean_past(writers: Sequence[Writer]) -> int:
    return sum(writer.n_past for writer in writers) // len(writers)


def _expected_tokens(writers: Sequence[Writer], top: int) -> list[float]:
    """Of a round of all writers, at each depth from 0 to top."""
    gains = [0.0] * top
    for writer in writers:
        room = min(top, writer.room)
        if room > 0 and isinstance(writer.depth, AutoDepth):
            together = 1.0
            for i, rate in enumerate(writer.depth.rates(room)):
                together *= rate
                gains[i] += together
    tokens = [float(len(writers))]
    for gain in gains:
        tokens.append(tokens[-1] + gain)
    return tokens


class SharedDepth:
    """The depth that brings the most tokens a second to so many sequences, by what their rounds cost."""

    def __init__(self, n: int, most: int, single: Costs) -> None:
        """
        n: sequences. most: drafts of one.
        single: of rounds of one sequence. A chain of several costs as much more as a plain round of theirs does.
        """
        self.costs = Costs()
        self._n, self._most, self._single = n, most, single
        self._timed = 0  # plain rounds, which others are compared with: a few come first
        self._deepest = 0  # of the rounds so far
        self._best = 0
        self._last = 0
        self._stay = 0  # rounds to come at the depth of the last
        self._plain = 0  # rounds without drafts
        self._run = 0
        self._before = -1

    def choose(self, tokens: Sequence[float], n_past: int) -> int:
        """tokens: expected of a round at each depth, from 0. n_past: tokens that a sequence holds, on average."""
        top = len(tokens) - 1
        if self._timed <= WARM:
            return 0
        if self._stay > 0 and self._last <= top:
            self._stay -= 1
            return self._last
        likely, least = self.costs.rounds(top, n_past)
        best = max(range(top + 1), key=lambda n: tokens[n] / likely[n])
        if self._best <= top and tokens[best] * likely[self._best] <= (1 + MARGIN) * tokens[self._best] * likely[best]:
            best = self._best
        self._best = best
        chosen, promise = best, (1 + PROMISE) * tokens[best] / likely[best]
        for n in range(1, min(top, 2 * self._deepest + 1) + 1):  # one doubling after the other
            if least[n] < likely[n] and tokens[n] > promise * least[n]:
                chosen, promise = n, tokens[n] / least[n]
        if chosen == 0 and self._plain >= PROBE:
            chosen = 1
        self._stay = STAY if chosen not in (self._last, 0) else 0
        self._last = chosen
        return chosen

    def observe(self, n_past: int, drafted: int, right: int, draft_seconds: float, verify_seconds: float) -> None:
        """What came of the round: drafts of all sequences that were right, and what it took."""
        self._run = self._run + 1 if drafted == self._before else 0
        self._before = drafted
        self._plain = 0 if drafted else self._plain + 1
        self._deepest = max(self._deepest, drafted)
        if right < self._n / 2:
            self._stay = 0
        self.costs.observe(n_past, drafted, draft_seconds, 1 + drafted, verify_seconds, self._run)
        if not drafted:
            self._timed += 1
            if self._timed == WARM + 1:
                self._begin_chains()

    def _begin_chains(self) -> None:
        growth = self.costs.verify_seconds(1) / self._single.verify_seconds(1)
        steps = {d: growth * self._single.draft_seconds(d) for d in range(1, self._most + 1)}
        self.costs.begin({}, {d: seconds for d, seconds in steps.items() if 0 < seconds < math.inf})
