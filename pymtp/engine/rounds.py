"""The speculative decoding loop: draft, verify, accept, rewind; and the warning about a head that does not fit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from pymtp.drafting.depth import DepthPolicy
from pymtp.drafting.text_drafts import TextDrafts
from pymtp.engine.context import RoundContext, SingleSequenceContext
from pymtp.errors import PymtpError
from pymtp.stats import DraftStats

_logger = logging.getLogger("pymtp.drafts")

# The check counts in how many rounds the first draft was accepted: in 50 to 90% of the rounds with a head that fits, in
# 30% with a poor head, and as seldom as a random token with random weights. Even if the true share were 15%, the chance
# to see less than 3% in 256 rounds with drafts would be 1e-11. Where drafts are useless, "auto" soon drafts only once
# in 100 tokens; then 16 rounds with drafts are enough. With a poor head, the chance that none of 16 drafts is accepted
# is 1 in 300.
MANY_DRAFTS = 256  # after this many rounds with drafts, the head is judged
MIN_ACCEPTANCE = 0.03
ROUNDS = 1024  # after this many rounds in all, FEW_DRAFTS rounds with drafts are enough
FEW_DRAFTS = 16
MAX_TEMPERATURE = 1.0  # at higher temperatures, the drafts of any head are seldom accepted
MAX_TEXTS_WITHOUT_LOGITS = 3  # after this many texts in a row without finite logits, the head is not used any more


class DecodeState:
    """The decode state of a sequence: its position, its drafts, and the result of its last round.

    token: the last output token, with which the next round begins; the target model does not hold it yet.
    n_past: the number of tokens that the target model holds.
    tokens_left: the number of tokens that may still be generated.
    max_drafts: the largest number of drafts per round; 0 once the head gave logits that are not finite, because its
        cache may hold such numbers from then on.
    head_failed: whether the head gave such logits for the first time in the last round.
    text: the tokens of prompt and output, from which drafts are made, too; None if they are not.
    by_text: the drafts from text that the next round verifies in place of drafts of the head; empty after the round.
    ended: whether the last token was generated.

    Results of the last round:

    made_drafts, confidences: all drafts that the head made, and its probability of each.
    verified_drafts: the drafts that were verified: drafts of the head, from the first on, and then drafts from text.
    n_by_head: the number of verified_drafts that the head made.
    new_tokens: the accepted drafts and the token after them, up to the end of the text.
    n_correct: the number of made_drafts before the first wrong one, as far as verification shows.
    n_accepted: the number of verified_drafts that are among new_tokens.
    n_accepted_by_head: the number of these that the head made.
    error: the error of the sequence; None if there are new tokens. With an error, the state of the sequence in the
        context is not known.
    """

    __slots__ = (
        "by_text",
        "confidences",
        "depth",
        "draft_stats",
        "ended",
        "error",
        "head_failed",
        "is_last",
        "made_drafts",
        "max_drafts",
        "n_accepted",
        "n_accepted_by_head",
        "n_by_head",
        "n_correct",
        "n_past",
        "new_tokens",
        "seq",
        "text",
        "token",
        "tokens_left",
        "verified_drafts",
    )

    def __init__(
        self,
        seq: int,
        token: int,
        n_past: int,
        *,
        tokens_left: int,
        is_last: Callable[[int], bool],
        draft_stats: DraftStats,
        depth: DepthPolicy,
        max_drafts: int | None = None,
        text: TextDrafts | None = None,
    ) -> None:
        """Create the state of a sequence that holds n_past tokens, before its first round.

        is_last: called once for each generated token, in order. Returns True to end the round after this token.
        max_drafts: the largest number of drafts per round; None for no limit.
        text: the tokens of the prompt, if drafts are made from text, too.
        """
        self.seq, self.token, self.n_past, self.tokens_left = seq, token, n_past, tokens_left
        self.is_last, self.draft_stats, self.depth = is_last, draft_stats, depth
        self.max_drafts = 10**9 if max_drafts is None else max_drafts
        self.ended = tokens_left < 1
        self.text = text
        self.by_text: Sequence[int] = ()
        self.made_drafts: Sequence[int] = ()
        self.confidences: Sequence[float] = ()
        self.verified_drafts: Sequence[int] = ()
        self.new_tokens: list[int] = []
        self.n_correct = self.n_accepted = self.n_by_head = self.n_accepted_by_head = 0
        self.head_failed = False
        self.error: PymtpError | None = None

    @property
    def draft_limit(self) -> int:
        """Return the number of drafts that the next round can use: a round generates one token more than its drafts."""
        left = self.tokens_left - 1
        return left if left < self.max_drafts else self.max_drafts

    def accept(self, context: RoundContext, sampled: list[int]) -> None:
        """Accept the drafts that equal the tokens that the target model sampled, and rewind the other verified rows."""
        made, n_drafts, is_last = self.made_drafts, len(self.verified_drafts), self.is_last
        agreed = len(sampled) - 1
        # The last sampled token also shows whether the first draft that was not verified is right
        next_is_right = agreed < len(made) and made[agreed] == sampled[agreed]
        self.n_correct = agreed + 1 if next_is_right else min(agreed, len(made))
        for i, token in enumerate(sampled, 1):
            if is_last(token):
                self.ended = True
                sampled = sampled[:i]
                break
        self.new_tokens, self.by_text = sampled, ()
        n_new = len(sampled)
        self.n_accepted = agreed if agreed < n_new else n_new  # less than `agreed` if the text ended within the drafts
        self.n_accepted_by_head = min(self.n_accepted, self.n_by_head)
        self.n_past += n_new
        if n_new <= n_drafts:
            context.rewind(self.n_past, self.seq)
        self.draft_stats.rounds += 1
        self.draft_stats.depths.append(n_drafts)
        if n_drafts or made:
            self._count_drafts(context)
        self.tokens_left -= n_new
        self.token = token
        if self.tokens_left < 1 or self.n_past >= context.n_ctx:
            self.ended = True

    def _count_drafts(self, context: RoundContext) -> None:
        stats, tokens, n_verified, n_accepted = (
            self.draft_stats,
            self.new_tokens,
            self.n_by_head,
            self.n_accepted_by_head,
        )
        stats.drafted += len(self.verified_drafts)
        stats.drafted_by_text += len(self.verified_drafts) - n_verified
        stats.accepted_by_text += self.n_accepted - n_accepted
        stats.discarded += len(self.made_drafts) - n_verified
        per_position = stats.accepted_per_position
        if len(per_position) < n_verified:
            stats.drafted_per_position.extend([0] * (n_verified - len(per_position)))
            per_position.extend([0] * (n_verified - len(per_position)))
            stats.outside_per_position.extend([0] * (n_verified - len(stats.outside_per_position)))
        for i in range(n_verified):
            stats.drafted_per_position[i] += 1
        for i in range(n_accepted):
            per_position[i] += 1
        rejected = n_accepted < n_verified and n_accepted < len(tokens)
        if rejected and not context.drafts_over(tokens[n_accepted]):
            stats.outside_per_position[n_accepted] += 1


class RoundDepth(Protocol):
    """Chooses the drafts of a round: one number for all sequences that the head drafts for; see engine.batch_depth."""

    def choose(self, states: Sequence[DecodeState]) -> int: ...
    def n_to_verify(self, states: Sequence[DecodeState]) -> int: ...
    def extend(self, state: DecodeState) -> Sequence[int]: ...
    def decodes(self, states: Sequence[DecodeState]) -> Sequence[Sequence[DecodeState]]: ...
    def observe(
        self, states: Sequence[DecodeState], drafted: int, draft_seconds: float, verify_seconds: float
    ) -> None: ...


class SingleSequenceDepth:
    """The depth of rounds with one sequence: the sequence's own policy, `DecodeState.depth`, chooses it."""

    def __init__(self, n_ctx: int) -> None:
        self._n_ctx = n_ctx

    def choose(self, states: Sequence[DecodeState]) -> int:
        """Choose the number of drafts to make, at most as many as the context has room for."""
        state = states[0]
        limit, fits = state.draft_limit, self._n_ctx - state.n_past - 1
        return state.depth.choose(limit if limit < fits else fits, state.n_past)

    def n_to_verify(self, states: Sequence[DecodeState]) -> int:
        """Choose how many of the drafts that were just made are verified."""
        state = states[0]
        return state.depth.n_to_verify(state.confidences)

    def extend(self, state: DecodeState) -> Sequence[int]:
        """Return no drafts from text."""
        return ()

    def decodes(self, states: Sequence[DecodeState]) -> Sequence[Sequence[DecodeState]]:
        """Return the sequences, which are verified in one decode."""
        return [states]

    def observe(self, states: Sequence[DecodeState], drafted: int, draft_seconds: float, verify_seconds: float) -> None:
        """Learn from the round that has just run."""
        state = states[0]
        if state.error is None:
            verified = len(state.verified_drafts)
            state.depth.observe(drafted, verified, state.n_correct, draft_seconds, verify_seconds)


def run_round(
    context: RoundContext,
    states: Sequence[DecodeState],
    depth: RoundDepth,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Run one round of all sequences: one draft call, if there are drafts, and one verification.

    Afterwards each state has its new tokens, at least one, or its error; the context holds all tokens of a sequence
    without an error, except the last one. If this raises an error, no sequence has new tokens.

    Returns the number of rows that each sequence has in the verification batch, with padding.
    """
    n_drafts = depth.choose(states)
    started = clock()  # later than the choice, which rounds without drafts make, too
    for state in states:
        state.made_drafts = state.confidences = ()
        state.verified_drafts = state.by_text
        state.n_by_head = 0
        state.head_failed = False
    by_head = [state for state in states if not state.by_text] if n_drafts else ()
    if by_head:
        _draft(context, by_head, depth, n_drafts)
    drafted = clock()
    results: dict[int, list[int] | PymtpError] = {}
    for together in depth.decodes(states):
        results |= context.verify_chains({state.seq: [state.token, *state.verified_drafts] for state in together})
    for state in states:
        sampled = results[state.seq]
        if isinstance(sampled, PymtpError):
            state.error = sampled
            continue
        try:
            state.accept(context, sampled)
        except PymtpError as error:  # the model may have been closed meanwhile
            state.error = error.with_traceback(None)
    # The time after the verification counts, too: for a small model it is a large part of the round
    depth.observe(states, n_drafts if by_head else 0, drafted - started, clock() - drafted)
    return 1 + max(len(state.verified_drafts) for state in states)


def _draft(context: RoundContext, states: Sequence[DecodeState], depth: RoundDepth, n_drafts: int) -> None:
    """Let the head make n_drafts drafts for each sequence, and choose those to verify."""
    drafts = context.draft_chains({state.seq: state.token for state in states}, n_drafts)
    for state in states:
        state.made_drafts, state.confidences = drafts[state.seq]
    n_verified = depth.n_to_verify(states)
    for state in states:
        limit = state.draft_limit
        state.verified_drafts = state.made_drafts[: n_verified if n_verified < limit else limit]
        state.n_by_head = len(state.verified_drafts)
        state.head_failed = len(state.made_drafts) < n_drafts and state.max_drafts > 0
        if state.head_failed:
            state.max_drafts = 0
        elif len(states) == 1 and state.text is not None and state.n_by_head == len(state.made_drafts):
            state.verified_drafts = [*state.verified_drafts, *depth.extend(state)]


def generate_single(
    context: SingleSequenceContext,
    prompt: Sequence[int],
    is_end: Callable[[int], bool],
    draft_stats: DraftStats,
    depth: DepthPolicy,
    *,
    max_tokens: int,
    seq: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[list[int], None, None]:
    """Generate one completion without an engine, for measurements and checks.

    Yields the tokens of each round, at least one, until `is_end(token)` is true, `max_tokens` were generated, or the
    context is full. After each yield, also if the caller stops the iteration, the context holds the prompt and all
    generated tokens except the last one, with which the next round begins.

    Raises the errors of the context.
    """
    context.prefill(prompt, seq)
    token = context.first_token(seq)
    single_depth = SingleSequenceDepth(context.n_ctx)
    n_past = context.tokens_held(seq)
    state = DecodeState(
        seq, token, n_past, tokens_left=max_tokens - 1, is_last=is_end, draft_stats=draft_stats, depth=depth
    )
    state.ended = is_end(token) or state.ended or n_past >= context.n_ctx
    yield [token]
    while not state.ended:
        run_round(context, [state], single_depth, clock)
        if state.error is not None:
            raise state.error
        yield state.new_tokens


class HeadCheck:
    """A check whether an LLM's head fits its model, by the share of rounds in which the first draft is accepted.

    It logs one warning if that share is far too low, and one if the head's logits are not finite. The generated text is
    right with any head; without the warning, a user would not learn why few drafts are accepted.
    """

    def __init__(self, model: str = "the model", remedy: str = "draft_tokens=0") -> None:
        """
        Start a check that has not seen any rounds.

        model: the name of the model's file, for warnings.
        remedy: the advice in the warning about drafts that are hardly ever accepted.
        """
        self._model, self._remedy = model, remedy
        self._rounds = 0  # number of rounds
        self._with_drafts = 0  # number of rounds with drafts
        self._accepted = 0  # number of rounds whose first draft was accepted
        self._judged = self._warned_of_logits = False
        self._texts_without_logits = 0

    @property
    def head_failed(self) -> bool:
        """Return whether the head's logits were not finite in the last few texts, so that it must not be used again."""
        return self._texts_without_logits >= MAX_TEXTS_WITHOUT_LOGITS

    def add(self, made: int, n_correct: int, not_finite: bool, temperature: float = 0.0) -> None:
        """Record a sequence's drafts in one round. Logs a warning once it is clear that the head does not fit.

        made: the number of drafts that were made.
        n_correct: the number of drafts before the first wrong one.
        not_finite: whether drafting ended because the head's logits were NaN or infinite.
        temperature: the temperature of the request.
        """
        if not_finite:
            self._add_text_without_logits()
        elif made:
            self._texts_without_logits = 0
        if self._judged or temperature > MAX_TEMPERATURE:
            return
        self._rounds += 1
        self._with_drafts += made > 0
        self._accepted += n_correct > 0
        if self._with_drafts >= MANY_DRAFTS or (self._rounds >= ROUNDS and self._with_drafts >= FEW_DRAFTS):
            self._judged = True
            if self._accepted < MIN_ACCEPTANCE * self._with_drafts:
                _logger.warning(
                    "%s: the first draft was accepted in only %d of %d rounds: this head does not fit the model. The "
                    "generated text is right all the same. Try %s; `pymtp tap` measures the acceptance",
                    self._model,
                    self._accepted,
                    self._with_drafts,
                    self._remedy,
                )

    def _add_text_without_logits(self) -> None:
        self._texts_without_logits += 1
        if not self._warned_of_logits:
            self._warned_of_logits = True
            _logger.warning(
                "%s: the head's logits are not finite (NaN or infinity): its drafts are dropped, and text is generated "
                "without drafts. Try another file, or draft_tokens=0",
                self._model,
            )
