"""The number of drafts per round: all sequences of a batch make the same number.

A single sequence has the depth that its own policy chooses. Several sequences have the depth at which all of them
together are expected to generate the most tokens per second, given the acceptance of their drafts and the time that a
batch takes at each depth. (SmartSpec, "Optimizing Speculative Decoding for Serving Large Language Models Using
Goodput", arXiv 2406.14066.)
"""

from __future__ import annotations

from collections.abc import Sequence

from pymtp.drafting.depth import (
    AutoDepth,
    BatchRoundSeconds,
    DepthPolicy,
    FixedDepth,
    RoundCosts,
    SharedDepth,
    thread_changes,
    thread_trials,
)
from pymtp.drafting.warm_up import MeasuredCosts
from pymtp.engine.rounds import DecodeState, SingleSequenceDepth


class BatchDepth:
    """Chooses the depth of each round of a context: the number of drafts of each sequence."""

    def __init__(self, n_ctx: int, max_rows: int, draft_tokens: int, costs: RoundCosts | None) -> None:
        """Create a policy that has learnt nothing yet.

        n_ctx: the size of the context, in tokens.
        max_rows: the largest number of rows of a batch.
        draft_tokens: the largest number of drafts of a sequence.
        costs: the costs of rounds with one sequence, from which depths are chosen; None: the depth is always
            draft_tokens.
        """
        self._n_ctx, self._max_rows, self._draft_tokens = n_ctx, max_rows, draft_tokens
        self._costs = costs
        self._single = SingleSequenceDepth(n_ctx)
        # The policy of the last request at each temperature: acceptance depends on the temperature
        self._last: dict[float, AutoDepth] = {}
        self.first_rounds: BatchRoundSeconds = {}
        self._shared: SharedDepth | None = None
        self._n_added = 0  # sequences that were added since the last round
        self._changes, self._trials = thread_changes(), thread_trials()

    def set_measured_costs(self, measured: MeasuredCosts) -> None:
        """Set the costs that the warm-up has measured. Must be called before the first round."""
        if self._costs is not None:
            self._costs.begin(measured.verify, measured.draft)
        self.first_rounds = measured.batch
        self._changes = thread_changes()

    def add_sequence(self, temperature: float) -> DepthPolicy:
        """Return the depth policy of a new sequence, which begins as the last policy of the same temperature ended."""
        if self._costs is None:
            return FixedDepth(self._draft_tokens)
        self._n_added += 1
        kind = min(2.0, round(temperature, 1))
        self._last[kind] = AutoDepth(self._costs, self._draft_tokens, after=self._last.get(kind))
        return self._last[kind]

    def choose(self, states: Sequence[DecodeState]) -> int:
        """Choose the number of drafts that each sequence makes in the next round."""
        n_added, self._n_added = self._n_added, 0
        if len(states) == 1:
            return self._single.choose(states)
        limit = min(self._draft_tokens, self._max_rows // len(states) - 1, max(state.draft_limit for state in states))
        # All sequences of a batch are padded to the same number of rows, and these must fit into the context
        limit = min(limit, self._n_ctx - 1 - max(state.n_past for state in states))
        limit = max(0, limit)
        if self._costs is None:
            return limit
        if self._shared is None:
            self._shared = SharedDepth(self._costs, self.first_rounds)
        limits = [state.draft_limit for state in states]
        return self._shared.choose(limits, _mean_past(states), limit, min(n_added, len(states)))

    def n_to_verify(self, states: Sequence[DecodeState]) -> int:
        """Choose how many of the drafts that were just made are verified."""
        if len(states) == 1:
            return self._single.n_to_verify(states)
        made = max(len(state.made_drafts) for state in states)  # a sequence whose head fails has fewer
        return self._shared.n_to_verify(made) if self._shared else made

    def observe(self, states: Sequence[DecodeState], drafted: int, draft_seconds: float, verify_seconds: float) -> None:
        """Learn from the round that has just run.

        drafted: number of drafts that were made per sequence.
        draft_seconds, verify_seconds: the time of the drafts, and the time of everything after them.
        """
        if self._costs is not None and not self._times_are_valid(self._costs):
            draft_seconds = verify_seconds = 0.0  # the policies learn no costs from times of 0
        if len(states) == 1:
            self._single.observe(states, drafted, draft_seconds, verify_seconds)
        elif self._shared and all(state.error is None for state in states):
            judged = [_n_judged(state) for state in states]
            self._shared.observe(
                [state.depth for state in states],
                judged,
                [min(state.n_correct, n) for state, n in zip(states, judged, strict=True)],
                [1 + min(state.n_correct, len(state.verified_drafts)) for state in states],
                _mean_past(states),
                drafted,
                draft_seconds,
                verify_seconds,
            )

    def _times_are_valid(self, costs: RoundCosts) -> bool:
        """Return whether the round ran with the usual number of threads, so that other rounds take the same time.

        The number changes for a round that tries another number, and when other programs take or free processors. In
        the second case, this also discards all costs.
        """
        trials, self._trials = self._trials, thread_trials()
        changes, before = thread_changes(), self._changes
        if changes != before:
            costs.forget()
            self.first_rounds = {}
            if self._shared:
                self._shared.forget()
            self._changes = changes  # set last: after an interrupt before this line, the next call discards the costs
        return (changes, trials) == (before, self._trials)


def _mean_past(states: Sequence[DecodeState]) -> int:
    return sum(state.n_past for state in states) // len(states)


def _n_judged(state: DecodeState) -> int:
    """Return how many drafts are known to be right or wrong: all verified ones, and the next if they are all right."""
    return min(len(state.made_drafts), len(state.verified_drafts) + (state.n_correct >= len(state.verified_drafts)))
