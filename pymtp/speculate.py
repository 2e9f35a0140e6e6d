"""The loop: prefill, then draft, verify, accept, rewind."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from pymtp.depth import Depth
from pymtp.stats import Tally


class SpeculativeContext(Protocol):
    """What the loop asks of a context; see context.Context."""

    n_ctx: int

    @property
    def n_past(self) -> int: ...
    def prefill(self, tokens: Sequence[int]) -> object: ...
    def first_token(self) -> int: ...
    def draft_chain(self, token: int, n: int) -> tuple[list[int], list[float]]: ...
    def verify_chain(self, tokens: Sequence[int]) -> list[int]: ...
    def drafts_over(self, token: int) -> bool: ...
    def rewind(self, n_keep: int) -> None: ...


def speculate(
    context: SpeculativeContext,
    prompt: Sequence[int],
    ends: Callable[[int], bool],
    tally: Tally,
    depth: Depth,
    *,
    max_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[list[int], None, None]:
    """Yields the tokens of each round, at least one, until one of them `ends` the text, `max_tokens` are out, or the
    context is full.

    ends: called once for each token that comes out, in order.

    Whenever it yields, and however the caller leaves, the context holds the prompt and all tokens that came out but
    the last: the one that the next round begins with.
    """
    context.prefill(prompt)
    token = context.first_token()
    n_past, n_ctx = context.n_past, context.n_ctx
    n_out = 1
    ended = ends(token)
    yield [token]
    while not ended and n_out < max_tokens and n_past < n_ctx:
        room = min(max_tokens - n_out, n_ctx - n_past) - 1
        started = clock()
        n = depth.choose(room, n_past)
        made, confidences = context.draft_chain(token, n) if n else ([], [])
        drafts = made[: depth.keep(confidences)] if n else []
        drafted = clock()
        sampled = context.verify_chain([token, *drafts])
        out, ended = _until(sampled, ends)
        n_past += len(out)
        if len(out) <= len(drafts):
            context.rewind(n_past)
        tally.discarded += len(made) - len(drafts)
        _count(context, tally, drafts, sampled, out)
        # a round is as long as all that it takes: for a small model, what comes after the verification counts, too
        verified = clock()
        depth.observe(n, len(drafts), _right(made, sampled), drafted - started, verified - drafted, confidences)
        token = out[-1]
        n_out += len(out)
        yield out


def _right(made: Sequence[int], sampled: Sequence[int]) -> int:
    """The drafts before the first wrong one. The last token sampled tells of a draft that was not verified, too."""
    n = len(sampled) - 1
    return n + 1 if n < len(made) and made[n] == sampled[n] else n


def _until(sampled: Sequence[int], ends: Callable[[int], bool]) -> tuple[list[int], bool]:
    """The tokens up to the one that ends the text, and whether there is one."""
    out: list[int] = []
    for token in sampled:
        out.append(token)
        if ends(token):
            return out, True
    return out, False


def _count(
    context: SpeculativeContext, tally: Tally, drafts: Sequence[int], sampled: Sequence[int], out: Sequence[int]
) -> None:
    tally.rounds += 1
    tally.drafted += len(drafts)
    tally.depths.append(len(drafts))
    # drafts that the target agreed with, unless they come after the end
    accepted = min(len(sampled) - 1, len(out))
    for per_position in (tally.accepted_per_position, tally.outside_per_position):
        per_position.extend([0] * (len(drafts) - len(per_position)))
    for i in range(accepted):
        tally.accepted_per_position[i] += 1
    if accepted < min(len(drafts), len(out)) and not context.drafts_over(out[accepted]):
        tally.outside_per_position[accepted] += 1
