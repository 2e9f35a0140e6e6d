"""How many drafts each, for the whole batch: all sequences of a round draft as many.

One sequence alone has the depth of its own policy. Several have the depth at which all of them together are expected to
bring the most tokens a second, by the acceptance of all their drafts and by what launches of so many rows take.
(SmartSpec, "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput", arXiv 2406.14066.)
"""

from __future__ import annotations

from collections.abc import Sequence

from pymtp.drafting.depth import (
    AutoDepth,
    Costs,
    Depth,
    FirstRounds,
    FixedDepth,
    SharedDepth,
    thread_changes,
    thread_trials,
)
from pymtp.drafting.warm_up import FirstCosts
from pymtp.engine.rounds import OwnDepth, Writer


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
        self.first_rounds: FirstRounds = {}
        self._shared: SharedDepth | None = None
        self._opened = 0  # sequences since the last round
        self._changes, self._trials = thread_changes(), thread_trials()

    def begin(self, first: FirstCosts) -> None:
        """Take what was timed just now, before the first round."""
        if self._costs is not None:
            self._costs.begin(first.verify, first.draft)
        self.first_rounds = first.batch
        self._changes = thread_changes()

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
            self._shared = SharedDepth(self._costs, self.first_rounds)
        rooms = [writer.room for writer in writers]
        return self._shared.choose(rooms, _mean_past(writers), top, min(opened, len(writers)))

    def keep(self, writers: Sequence[Writer]) -> int:
        """How many of the drafts just made to verify."""
        if len(writers) == 1:
            return self._own.keep(writers)
        made = max(len(writer.made) for writer in writers)  # fewer of one whose head gives no numbers
        return self._shared.keep(made) if self._shared else made

    def observe(self, writers: Sequence[Writer], drafted: int, draft_seconds: float, verify_seconds: float) -> None:
        """What came of the round that was chosen last."""
        if self._costs is not None and not self._had_its_threads(self._costs):
            draft_seconds = verify_seconds = 0.0  # which teaches nothing
        if len(writers) == 1:
            self._own.observe(writers, drafted, draft_seconds, verify_seconds)
        elif self._shared and all(writer.error is None for writer in writers):
            told = [_told(writer) for writer in writers]
            self._shared.observe(
                [writer.depth for writer in writers],
                told,
                [min(writer.right, n) for writer, n in zip(writers, told, strict=True)],
                [1 + min(writer.right, len(writer.drafts)) for writer in writers],
                _mean_past(writers),
                drafted,
                draft_seconds,
                verify_seconds,
            )

    def _had_its_threads(self, costs: Costs) -> bool:
        """Tell whether the time of the round counts for others: not where another number of threads was tried in it, or
        other programs changed the number. Forget the costs of before in the latter case."""
        trials, self._trials = self._trials, thread_trials()
        changes, before = thread_changes(), self._changes
        if changes != before:
            costs.forget()
            self.first_rounds = {}
            if self._shared:
                self._shared.forget()
            self._changes = changes  # last: a signal handler may raise before
        return (changes, trials) == (before, self._trials)


def _mean_past(writers: Sequence[Writer]) -> int:
    return sum(writer.n_past for writer in writers) // len(writers)


def _told(writer: Writer) -> int:
    """Of its drafts, how many the target told of: those that were verified, and one more where all those are right."""
    return min(len(writer.made), len(writer.drafts) + (writer.right >= len(writer.drafts)))
