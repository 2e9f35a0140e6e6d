"""The loop: prefill, then draft, verify, accept, rewind."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pymtp.sampling import Logits


class SpeculativeContext(Protocol):
    """What the loop asks of a context; see context.Context."""

    n_ctx: int

    @property
    def n_past(self) -> int: ...
    def prefill(self, tokens: Sequence[int]) -> Logits: ...
    def draft(self, token: int) -> Logits: ...
    def verify(self, tokens: Sequence[int]) -> Sequence[Logits] | Logits: ...
    def rewind(self, n_keep: int) -> None: ...


@dataclass
class Tally:
    """What the rounds of one generation came to."""

    rounds: int = 0
    drafted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    sample_seconds: float = 0.0


class Draw:
    """A sampler's `draw`, timed."""

    def __init__(self, draw: Callable[[Logits, int], int], tally: Tally) -> None:
        self._draw = draw
        self._tally = tally

    def __call__(self, logits: Logits, position: int) -> int:
        start = time.perf_counter()
        token = self._draw(logits, position)
        self._tally.sample_seconds += time.perf_counter() - start
        return token


def speculate(
    context: SpeculativeContext,
    prompt: Sequence[int],
    draw: Callable[[Logits, int], int],
    ends: Callable[[int], bool],
    tally: Tally,
    *,
    draft_tokens: int,
    max_tokens: int,
) -> Generator[list[int], None, None]:
    """Yields the tokens of each round, at least one, until one of them `ends` the text, `max_tokens` are out, or the
    context is full.

    draw: (logits, position) → token; called once for each position that comes out, in order, and for each draft.
    ends: called once for each token that comes out, in order.

    Whenever it yields, and however the caller leaves, the context holds the prompt and all tokens that came out but
    the last: the one that the next round begins with.
    """
    draw = Draw(draw, tally)
    token = draw(context.prefill(prompt), context.n_past)
    n_out = 1
    ended = ends(token)
    yield [token]
    while not ended and n_out < max_tokens and context.n_past < context.n_ctx:
        n_past = context.n_past
        room = min(max_tokens - n_out, context.n_ctx - n_past)
        drafts = _draft(context, token, min(draft_tokens, room - 1), draw)
        out, ended = _accept(context.verify([token, *drafts]), drafts, n_past + 1, draw, ends)
        context.rewind(n_past + len(out))
        _count(tally, drafts, out)
        token = out[-1]
        n_out += len(out)
        yield out


def _draft(context: SpeculativeContext, token: int, n: int, draw: Callable[[Logits, int], int]) -> list[int]:
    """Chains n steps of the head from `token`. A draft is drawn with the noise of the position it stands for."""
    drafts: list[int] = []
    for i in range(n):
        token = draw(context.draft(token), context.n_past + 1 + i)
        drafts.append(token)
    return drafts


def _accept(
    rows: Sequence[Logits] | Logits,
    drafts: Sequence[int],
    position: int,
    draw: Callable[[Logits, int], int],
    ends: Callable[[int], bool],
) -> tuple[list[int], bool]:
    """The target's own tokens from `position` on, as far as they agree with the drafts and one further."""
    out: list[int] = []
    for i, row in enumerate(rows):
        token = draw(row, position + i)
        out.append(token)
        if ends(token):
            return out, True
        if i < len(drafts) and token != drafts[i]:
            break
    return out, False


def _count(tally: Tally, drafts: Sequence[int], out: Sequence[int]) -> None:
    tally.rounds += 1
    tally.drafted += len(drafts)
    accepted = sum(token == draft for token, draft in zip(out, drafts, strict=False))
    per_position = tally.accepted_per_position
    per_position.extend([0] * (len(drafts) - len(per_position)))
    for i in range(accepted):
        per_position[i] += 1
