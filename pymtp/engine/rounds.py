"""The algorithm: draft, verify, accept, take back, for a set of sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

from pymtp.drafting.depth import Depth
from pymtp.errors import PymtpError
from pymtp.stats import Tally


class RoundContext(Protocol):
    """What rounds ask of a context; see context.Context."""

    n_ctx: int

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]: ...
    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]: ...
    def drafts_over(self, token: int) -> bool: ...
    def rewind(self, n_keep: int, seq: int = 0) -> None: ...


class Writer:
    """A sequence that writes: where it stands, and what came of its last round.

    token: the last that came out; the target does not hold it. n_past: tokens that the target holds. left: tokens still
    to come. cap: the most drafts that it wants a round; 0 once the head gave no finite logits, whose cache may hold
    such numbers from there on. mute: that it first did so in the last round. ended: its text ended, or nothing is left.
    made, confidences: the drafts of the last round. drafts: those of them that were verified. out: the tokens that
    came. right: of the drafts made, those before the first wrong one, as far as the target told. accepted: of those
    verified, the ones that came out. error: why none came; the context's sequence is then in no known state.
    """

    __slots__ = (
        "accepted",
        "cap",
        "confidences",
        "depth",
        "drafts",
        "ended",
        "ends",
        "error",
        "left",
        "made",
        "mute",
        "n_past",
        "out",
        "right",
        "seq",
        "tally",
        "token",
    )

    def __init__(
        self,
        seq: int,
        token: int,
        n_past: int,
        *,
        left: int,
        ends: Callable[[int], bool],
        tally: Tally,
        depth: Depth,
        cap: int | None = None,
    ) -> None:
        """ends: called once for each token that comes out, in order, whether it is the last."""
        self.seq, self.token, self.n_past, self.left = seq, token, n_past, left
        self.ends, self.tally, self.depth = ends, tally, depth
        self.cap = 10**9 if cap is None else cap
        self.ended = left < 1
        self.made: Sequence[int] = ()
        self.confidences: Sequence[float] = ()
        self.drafts: Sequence[int] = ()
        self.out: list[int] = []
        self.right = self.accepted = 0
        self.mute = False
        self.error: PymtpError | None = None

    @property
    def room(self) -> int:
        """The most drafts that it can use: a round brings one token more."""
        left = self.left - 1
        return left if left < self.cap else self.cap

    def take(self, context: RoundContext, out: list[int]) -> None:
        """Accepts what the target agrees with, and takes back the rest of the rows that it verified."""
        made, n_drafts, ends = self.made, len(self.drafts), self.ends
        agreed = len(out) - 1
        # the last token sampled tells of a draft that was not verified, too
        self.right = agreed + 1 if agreed < len(made) and made[agreed] == out[agreed] else agreed
        for i, token in enumerate(out, 1):
            if ends(token):
                self.ended = True
                out = out[:i]
                break
        self.out = out
        n_out = len(out)
        self.accepted = agreed if agreed < n_out else n_out  # less than agreed where the text ended before
        self.n_past += n_out
        if n_out <= n_drafts:
            context.rewind(self.n_past, self.seq)
        self.tally.rounds += 1
        self.tally.depths.append(n_drafts)
        if made:
            self._count_drafts(context)
        self.left -= n_out
        self.token = token
        if self.left < 1 or self.n_past >= context.n_ctx:
            self.ended = True

    def _count_drafts(self, context: RoundContext) -> None:
        tally, out, n, accepted = self.tally, self.out, len(self.drafts), self.accepted
        tally.drafted += n
        tally.discarded += len(self.made) - n
        per_position = tally.accepted_per_position
        if len(per_position) < n:
            per_position.extend([0] * (n - len(per_position)))
            tally.outside_per_position.extend([0] * (n - len(tally.outside_per_position)))
        for i in range(accepted):
            per_position[i] += 1
        if accepted < n and accepted < len(out) and not context.drafts_over(out[accepted]):
            tally.outside_per_position[accepted] += 1


class RoundDepth(Protocol):
    """Chooses one number of drafts for all writers of a round; see engine.depth."""

    def choose(self, writers: Sequence[Writer]) -> int: ...
    def keep(self, writers: Sequence[Writer]) -> int: ...
    def observe(self, writers: Sequence[Writer], drafted: int, draft_seconds: float, verify_seconds: float) -> None: ...


class OwnDepth:
    """The depth of a round of one writer is its own."""

    def __init__(self, n_ctx: int) -> None:
        self._n_ctx = n_ctx

    def choose(self, writers: Sequence[Writer]) -> int:
        """The drafts to make: as many as there is room for in the context, too."""
        writer = writers[0]
        room, fits = writer.room, self._n_ctx - writer.n_past - 1
        return writer.depth.choose(room if room < fits else fits, writer.n_past)

    def keep(self, writers: Sequence[Writer]) -> int:
        """How many of the drafts just made to verify."""
        writer = writers[0]
        return writer.depth.keep(writer.confidences)

    def observe(self, writers: Sequence[Writer], drafted: int, draft_seconds: float, verify_seconds: float) -> None:
        """What came of the round."""
        writer = writers[0]
        if writer.error is None:
            verified = len(writer.drafts)
            writer.depth.observe(drafted, verified, writer.right, draft_seconds, verify_seconds, writer.confidences)


def play_round(
    context: RoundContext,
    writers: Sequence[Writer],
    depth: RoundDepth,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """One round of all writers: one launch of the head, where there are drafts, and one of the target. Each writer has
    its tokens, at least one, or its error. Returns the rows of each that the target took, padding included.

    Then, but for those with an error, the context holds all tokens of each writer that came out but the last. What is
    raised tells of no tokens.
    """
    started = clock()
    n = depth.choose(writers)
    if n:
        drafts = context.draft_chains({writer.seq: writer.token for writer in writers}, n)
        for writer in writers:
            writer.made, writer.confidences = drafts[writer.seq]
        kept = depth.keep(writers)
        for writer in writers:
            room = writer.room
            writer.drafts = writer.made[: kept if kept < room else room]
            writer.mute = len(writer.made) < n and writer.cap > 0
            if writer.mute:
                writer.cap = 0
    else:
        for writer in writers:
            writer.made = writer.confidences = writer.drafts = ()
            writer.mute = False
    drafted = clock()
    chains = {writer.seq: [writer.token, *writer.drafts] for writer in writers}
    found = context.verify_chains(chains)
    for writer in writers:
        sampled = found[writer.seq]
        if isinstance(sampled, PymtpError):
            writer.error = sampled
            continue
        try:
            writer.take(context, sampled)
        except PymtpError as error:  # of a model that was closed meanwhile
            writer.error = error.with_traceback(None)
    # a round is as long as all that it takes: for a small model, what comes after the verification counts, too
    depth.observe(writers, n, drafted - started, clock() - drafted)
    return max(map(len, chains.values()))


class SingleContext(RoundContext, Protocol):
    """What a text by itself asks of a context."""

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> object: ...
    def first_token(self, seq: int = 0) -> int: ...
    def tokens_held(self, seq: int = 0) -> int: ...


def write_alone(
    context: SingleContext,
    prompt: Sequence[int],
    ends: Callable[[int], bool],
    tally: Tally,
    depth: Depth,
    *,
    max_tokens: int,
    seq: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[list[int], None, None]:
    """A text by itself, without an engine: for measurements and checks. Yields the tokens of each round, at least one,
    until one of them `ends` the text, `max_tokens` are out, or the context is full. Raises what the context raises.

    Whenever it yields, and however the caller leaves, the context holds the prompt and all tokens that came out but
    the last: the one that the next round begins with.
    """
    context.prefill(prompt, seq)
    token = context.first_token(seq)
    own = OwnDepth(context.n_ctx)
    held = context.tokens_held(seq)
    writer = Writer(seq, token, held, left=max_tokens - 1, ends=ends, tally=tally, depth=depth)
    writer.ended = ends(token) or writer.ended or held >= context.n_ctx
    yield [token]
    while not writer.ended:
        play_round(context, [writer], own, clock)
        if writer.error is not None:
            raise writer.error
        yield writer.out
