"""The drafts of each round: how many the head makes for each sequence of a batch, and which sequences draft from text.

The number of the head's drafts is fixed, or the one that is expected to yield the most tokens per second of all
sequences together, given the acceptance of their drafts and the time that a batch takes at each depth; see
drafting.depth. Where drafts from text are expected to yield more, a sequence verifies these; see drafting.text_drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pymtp.drafting.depth import (
    AutoDepth,
    DepthPolicy,
    FixedDepth,
    RoundCosts,
    RoundSeconds,
    SequenceDepth,
    thread_changes,
    thread_trials,
)
from pymtp.drafting.text_drafts import DraftChoice, GuessRates, TextChoice, TextDrafts
from pymtp.drafting.text_index import TextIndex
from pymtp.engine.rounds import DecodeState
from pymtp.errors import NativeError


class BatchDepth:
    """Chooses the depth of each round of a context: the number of drafts of each sequence."""

    def __init__(
        self,
        n_ctx: int,
        max_rows: int,
        draft_tokens: int,
        costs: RoundCosts | None,
        text_choice: TextChoice | None = None,
    ) -> None:
        """Create a policy that has learnt nothing yet.

        n_ctx: the size of the context, in tokens.
        max_rows: the largest number of rows of a batch.
        draft_tokens: the largest number of drafts of a sequence.
        costs: the costs of rounds in the context, from which depths are chosen; None: the depth is always draft_tokens.
        text_choice: chooses drafts from text, if there are costs; None for drafts of the head alone.
        """
        self._n_ctx, self._max_rows, self._draft_tokens = n_ctx, max_rows, draft_tokens
        self._costs = costs
        self._auto = None if costs is None else AutoDepth(costs)
        assert text_choice is None or costs is not None
        self._changes, self._trials = thread_changes(), thread_trials()
        # rounds without drafts that nothing is asked or learnt about: how many are left, and how many were made
        self._idle_left = self._n_idle = 0
        self._is_idle = False
        self._n_seqs = 0  # number of sequences of the last round
        self._text_choice = text_choice
        self._guess_rates = GuessRates()
        self._choice: DraftChoice | None = None  # the current round's, if it has drafts from text
        self._n_decodes = 1  # number of calls that verify the drafts of the current round

    def set_measured_costs(self, measured: RoundSeconds) -> None:
        """Set the costs that the warm-up has measured. Must be called before the first round."""
        if self._costs is not None:
            self._costs.begin(measured)
        self._changes = thread_changes()

    def add_sequence(self, temperature: float) -> DepthPolicy:
        """Return the depth policy of a new sequence."""
        self._idle_left = self._n_idle = 0  # the new sequence was in none of these rounds
        return FixedDepth(self._draft_tokens) if self._auto is None else self._auto.add_sequence(temperature)

    @property
    def uses_text(self) -> bool:
        """Return whether drafts are made from text, too."""
        return self._text_choice is not None

    def add_text(self, earlier: TextIndex | None, tokens: Sequence[int]) -> TextDrafts | None:
        """Return the text of a new sequence; None if no drafts are made from text, or if there is no memory for it.

        earlier: the outputs of earlier requests, from which its drafts may come, too.
        tokens: the prompt, and the output of before a restart.
        """
        if self._text_choice is None:
            return None
        try:
            text = TextDrafts(self._guess_rates, earlier)
            text.add(tokens)
        except NativeError:
            return None
        return text

    def choose(self, states: Sequence[DecodeState]) -> int:
        """Choose the drafts of the next round. Return the number that the head makes for each sequence without others.

        Sets `by_text` of the states.
        """
        if self._text_choice is not None:
            self._choice = self._choose_text(states, self._text_choice)
            if self._choice is not None:
                for state, drafts in zip(states, self._choice.by_text, strict=True):
                    state.by_text = drafts
                self._n_seqs = len(states)
                self._idle_left = 0
                return self._choice.depth
        if self._idle_left > 0 and len(states) == self._n_seqs:
            self._idle_left -= 1
            self._n_idle += 1
            self._is_idle = True
            return 0
        self._is_idle, self._n_seqs = False, len(states)
        limits = [state.draft_limit for state in states]
        # All sequences of a batch are padded to the same number of rows, and these must fit into the context
        fits = self._n_ctx - 1 - max(state.n_past for state in states)
        limit = max(0, min(self._draft_tokens, self._max_rows // len(states) - 1, max(limits), fits))
        if self._auto is None:
            return limit
        n_idle, self._n_idle = self._n_idle, 0
        return self._auto.choose(_sequences(states), limits, limit, n_idle)

    def _choose_text(self, states: Sequence[DecodeState], choice: TextChoice) -> DraftChoice | None:
        texts = [state.text for state in states]
        if not any(texts):
            return None
        fits = self._n_ctx - 1 - max(state.n_past for state in states)
        limits = [max(0, min(state.draft_limit, fits)) for state in states]
        return choice.choose(texts, _sequences(states), limits)

    def extend(self, state: DecodeState) -> Sequence[int]:
        """Return the drafts from text to verify after those of the head, if the round has a single sequence."""
        text = state.text
        if self._text_choice is None or self._n_seqs != 1 or text is None or text.failed or not state.made_drafts:
            return ()
        (head,) = _sequences([state])
        limit = min(state.draft_limit, self._n_ctx - 1 - state.n_past)
        return self._text_choice.extend(text, head, limit, state.made_drafts, state.confidences)

    def decodes(self, states: Sequence[DecodeState]) -> Sequence[Sequence[DecodeState]]:
        """Return the sequences of each call that verifies drafts: all, or neighbours with drafts of the same source."""
        self._n_decodes = 1
        if self._choice is None or not self._choice.split:
            return [states]
        groups = [list(group) for _, group in groupby(states, key=lambda state: bool(state.by_text))]
        self._n_decodes = len(groups)
        return groups

    def n_to_verify(self, states: Sequence[DecodeState]) -> int:
        """Choose how many of the drafts that were just made are verified."""
        made = max(len(state.made_drafts) for state in states)  # a sequence whose head fails has fewer
        if self._auto is None or self._choice is not None:
            return made
        confidences = [p for state in states for p in [*state.confidences, *[0.0] * made][:made]]
        return self._auto.n_to_verify(_sequences(states), made, confidences)

    def observe(self, states: Sequence[DecodeState], drafted: int, draft_seconds: float, verify_seconds: float) -> None:
        """Learn from the round that has just run.

        drafted: number of drafts that were made per sequence.
        draft_seconds, verify_seconds: the time of the drafts, and the time of everything after them.
        """
        if self._text_choice is not None and any(len(state.verified_drafts) > state.n_by_head for state in states):
            self._observe_text(states, self._text_choice, drafted, draft_seconds, verify_seconds)
            return
        # The last of the idle rounds is timed: the first would show the time of a round after one with drafts.
        if self._auto is None or self._costs is None or (self._is_idle and self._idle_left > 0):
            return
        if not self._times_are_valid(self._costs):
            draft_seconds = verify_seconds = 0.0  # the policy learns no costs from times of 0
        if all(state.error is None for state in states):
            self._observe_head(self._auto, states, drafted, draft_seconds, verify_seconds)
            if not self._is_idle:
                self._idle_left = self._auto.idle_rounds()

    def _observe_head(
        self,
        auto: AutoDepth,
        states: Sequence[DecodeState],
        drafted: int,
        draft_seconds: float,
        verify_seconds: float,
    ) -> None:
        judged = [_n_judged(state) for state in states]
        auto.observe(
            _sequences(states),
            judged,
            [min(state.n_correct, n) for state, n in zip(states, judged, strict=True)],
            # the tokens of idle rounds are counted by the next call of choose()
            [0 if self._is_idle else 1 + min(state.n_correct, state.n_by_head) for state in states],
            drafted,
            draft_seconds,
            max(state.n_by_head for state in states),
            verify_seconds,
        )

    def _observe_text(
        self,
        states: Sequence[DecodeState],
        choice: TextChoice,
        drafted: int,
        draft_seconds: float,
        verify_seconds: float,
    ) -> None:
        """Learn from a round with drafts from text: its tokens judge them when the next `choose` reads these."""
        if self._costs is None or self._auto is None or any(state.error is not None for state in states):
            return
        if self._choice is None:  # drafts from text followed those of the head
            self._observe_head(self._auto, states, drafted, draft_seconds, 0.0)
        else:
            for state, head in zip(states, _sequences(states), strict=True):
                if state.made_drafts:
                    head.acceptance.observe(_n_judged(state), min(state.n_correct, _n_judged(state)), 1)
        if self._times_are_valid(self._costs) and self._n_decodes == 1:
            choice.observe(len(states), max(len(state.verified_drafts) for state in states), verify_seconds)

    def _times_are_valid(self, costs: RoundCosts) -> bool:
        """Return whether the round ran with the usual number of threads, so that other rounds take the same time.

        The number changes for a round that tries another number, and when other programs take or free processors. In
        the second case, the next rounds replace the costs.
        """
        trials, self._trials = self._trials, thread_trials()
        changes, before = thread_changes(), self._changes
        if changes != before:
            costs.doubt()
            self._changes = changes  # set last: after an interrupt before this line, the next call does that
        return (changes, trials) == (before, self._trials)


def _sequences(states: Sequence[DecodeState]) -> list[SequenceDepth]:
    return [state.depth for state in states if isinstance(state.depth, SequenceDepth)]


def _n_judged(state: DecodeState) -> int:
    """Return how many drafts are known to be right or wrong: all verified ones, and the next if they are all right."""
    return min(len(state.made_drafts), state.n_by_head + (state.n_correct >= state.n_by_head))
