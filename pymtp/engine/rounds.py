"""The speculative decoding loop: draft, verify, accept and rewind, for a set of sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

from pymtp.drafting.depth import DepthPolicy
from pymtp.errors import PymtpError
from pymtp.stats import DraftStats


class RoundContext(Protocol):
    """The calls of a context that a round makes; see context.Context."""

    n_ctx: int

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]: ...
    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]: ...
    def drafts_over(self, token: int) -> bool: ...
    def rewind(self, n_keep: int, seq: int = 0) -> None: ...


class DecodeState:
    """The decode state of a sequence: its position, its drafts, and the result of its last round.

    token: the last output token, with which the next round begins; the target model does not hold it yet.
    n_past: the number of tokens that the target model holds.
    tokens_left: the number of tokens that may still be generated.
    max_drafts: the largest number of drafts per round; 0 once the head gave logits that are not finite, because its
        cache may hold such numbers from then on.
    head_failed: whether the head gave such logits for the first time in the last round.
    ended: whether the last token was generated.

    Results of the last round:

    made_drafts, confidences: all drafts that the head made, and its probability of each.
    verified_drafts: those drafts, from the first on, that were verified.
    new_tokens: the accepted drafts and the token after them, up to the end of the text.
    n_correct: the number of made_drafts before the first wrong one, as far as verification shows.
    n_accepted: the number of verified_drafts that are among new_tokens.
    error: the error of the sequence; None if there are new tokens. With an error, the state of the sequence in the
        context is not known.
    """

    __slots__ = (
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
        "n_correct",
        "n_past",
        "new_tokens",
        "seq",
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
    ) -> None:
        """Create the state of a sequence that holds n_past tokens, before its first round.

        is_last: called once for each generated token, in order. Returns True to end the round after this token.
        max_drafts: the largest number of drafts per round; None for no limit.
        """
        self.seq, self.token, self.n_past, self.tokens_left = seq, token, n_past, tokens_left
        self.is_last, self.draft_stats, self.depth = is_last, draft_stats, depth
        self.max_drafts = 10**9 if max_drafts is None else max_drafts
        self.ended = tokens_left < 1
        self.made_drafts: Sequence[int] = ()
        self.confidences: Sequence[float] = ()
        self.verified_drafts: Sequence[int] = ()
        self.new_tokens: list[int] = []
        self.n_correct = self.n_accepted = 0
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
        self.n_correct = agreed + 1 if agreed < len(made) and made[agreed] == sampled[agreed] else agreed
        for i, token in enumerate(sampled, 1):
            if is_last(token):
                self.ended = True
                sampled = sampled[:i]
                break
        self.new_tokens = sampled
        n_new = len(sampled)
        self.n_accepted = agreed if agreed < n_new else n_new  # less than `agreed` if the text ended within the drafts
        self.n_past += n_new
        if n_new <= n_drafts:
            context.rewind(self.n_past, self.seq)
        self.draft_stats.rounds += 1
        self.draft_stats.depths.append(n_drafts)
        if made:
            self._count_drafts(context)
        self.tokens_left -= n_new
        self.token = token
        if self.tokens_left < 1 or self.n_past >= context.n_ctx:
            self.ended = True

    def _count_drafts(self, context: RoundContext) -> None:
        stats, tokens, n_verified, n_accepted = (
            self.draft_stats,
            self.new_tokens,
            len(self.verified_drafts),
            self.n_accepted,
        )
        stats.drafted += n_verified
        stats.discarded += len(self.made_drafts) - n_verified
        per_position = stats.accepted_per_position
        if len(per_position) < n_verified:
            per_position.extend([0] * (n_verified - len(per_position)))
            stats.outside_per_position.extend([0] * (n_verified - len(stats.outside_per_position)))
        for i in range(n_accepted):
            per_position[i] += 1
        rejected = n_accepted < n_verified and n_accepted < len(tokens)
        if rejected and not context.drafts_over(tokens[n_accepted]):
            stats.outside_per_position[n_accepted] += 1


class RoundDepth(Protocol):
    """Chooses one number of drafts for all sequences of a round; see engine.batch_depth."""

    def choose(self, states: Sequence[DecodeState]) -> int: ...
    def n_to_verify(self, states: Sequence[DecodeState]) -> int: ...
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
    started = clock()
    n_drafts = depth.choose(states)
    if n_drafts:
        drafts = context.draft_chains({state.seq: state.token for state in states}, n_drafts)
        for state in states:
            state.made_drafts, state.confidences = drafts[state.seq]
        n_verified = depth.n_to_verify(states)
        for state in states:
            limit = state.draft_limit
            state.verified_drafts = state.made_drafts[: n_verified if n_verified < limit else limit]
            state.head_failed = len(state.made_drafts) < n_drafts and state.max_drafts > 0
            if state.head_failed:
                state.max_drafts = 0
    else:
        for state in states:
            state.made_drafts = state.confidences = state.verified_drafts = ()
            state.head_failed = False
    drafted = clock()
    chains = {state.seq: [state.token, *state.verified_drafts] for state in states}
    results = context.verify_chains(chains)
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
    depth.observe(states, n_drafts, drafted - started, clock() - drafted)
    return max(map(len, chains.values()))


class SingleSequenceContext(RoundContext, Protocol):
    """The calls of a context that `generate_single` makes."""

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> object: ...
    def first_token(self, seq: int = 0) -> int: ...
    def tokens_held(self, seq: int = 0) -> int: ...


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
