"""Claims about the loop, on a scripted context: no model, every acceptance pattern."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymtp.sampling import Logits
from pymtp.speculate import Tally, speculate

VOCAB = 50


def one_hot(token: int) -> Logits:
    row = np.zeros(VOCAB, dtype=np.float32)
    row[token] = 1
    return row


class ScriptedContext:
    """A target that writes `text` after any prompt, and a head that is right where `hits` says so.

    It holds the rules of a real context: what may be drafted, verified and rewound.
    """

    def __init__(self, text: Sequence[int], hits: Sequence[bool], n_ctx: int = 1000) -> None:
        self.text, self.hits, self.n_ctx = list(text), list(hits), n_ctx
        self.tokens: list[int] = []
        self.prompt = 0
        self.rewindable = 0
        self.chain: list[int] = []
        self.longest_verify = 0

    @property
    def n_past(self) -> int:
        return len(self.tokens)

    def _after(self, n: int) -> int:
        """The target's token at position n."""
        i = n - self.prompt
        return self.text[i] if i < len(self.text) else 0

    def prefill(self, tokens: Sequence[int]) -> Logits:
        self.tokens += tokens
        self.prompt = len(self.tokens)
        return one_hot(self._after(self.n_past))

    def draft(self, token: int) -> Logits:
        self.chain.append(token)
        position = self.n_past + len(self.chain)
        assert position <= self.n_ctx
        right = self._after(position)
        hit = self.hits[position % len(self.hits)]
        return one_hot(right if hit else (right + 1) % VOCAB)

    def verify(self, tokens: Sequence[int]) -> Logits:
        assert self.chain in ([], list(tokens[:-1])), "a verification starts from what was drafted from"
        assert self.n_past + len(tokens) <= self.n_ctx
        self.chain = []
        start = self.n_past
        self.tokens += tokens
        self.rewindable = len(tokens) - 1
        self.longest_verify = max(self.longest_verify, len(tokens))
        return np.stack([one_hot(self._after(start + 1 + i)) for i in range(len(tokens))])

    def rewind(self, n_keep: int) -> None:
        assert 0 <= self.n_past - n_keep <= self.rewindable
        del self.tokens[n_keep:]
        self.rewindable = 0


def greedy(logits: Logits, _position: int) -> int:
    return int(logits.argmax())


def run(
    context: ScriptedContext, *, draft_tokens: int, max_tokens: int, end: int | None = None, prompt: int = 3
) -> tuple[list[int], Tally]:
    tally = Tally()
    out: list[int] = []
    rounds = speculate(
        context,
        [1] * prompt,
        greedy,
        lambda token: token == end,
        tally,
        draft_tokens=draft_tokens,
        max_tokens=max_tokens,
    )
    for tokens in rounds:
        assert tokens
        out += tokens
        assert context.tokens == [1] * prompt + out[:-1], "the caches are at the cut whenever the loop yields"
    return out, tally


texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60)
hits = st.lists(st.booleans(), min_size=1, max_size=20)


@given(texts, hits, st.integers(0, 8), st.integers(1, 60))
def test_the_text_is_the_targets_whatever_the_head_drafts(
    text: list[int], hits: list[bool], depth: int, max_tokens: int
) -> None:
    out, _ = run(ScriptedContext(text, hits), draft_tokens=depth, max_tokens=max_tokens)
    assert out == (text + [0] * max_tokens)[:max_tokens]


@given(texts, hits, st.integers(0, 8), st.integers(0, VOCAB - 1))
def test_an_end_token_inside_an_accepted_window_ends_the_text_there(
    text: list[int], hits: list[bool], depth: int, end: int
) -> None:
    text = [*text, end]
    out, _ = run(ScriptedContext(text, hits), draft_tokens=depth, max_tokens=1000, end=end)
    assert out == text[: text.index(end) + 1]


@given(texts, hits, st.integers(0, 8), st.integers(4, 40))
def test_the_context_is_filled_to_the_last_token_and_no_further(
    text: list[int], hits: list[bool], depth: int, n_ctx: int
) -> None:
    context = ScriptedContext(text, hits, n_ctx)
    out, _ = run(context, draft_tokens=depth, max_tokens=1000)
    assert len(out) == n_ctx - 3 + 1  # the last one needs no place


@given(st.integers(1, 8))
def test_a_head_that_is_always_right_saves_all_rounds_but_one_in_depth_plus_one(depth: int) -> None:
    text = list(range(40))
    _, tally = run(ScriptedContext(text, [True]), draft_tokens=depth, max_tokens=41)
    assert tally.rounds == -(-40 // (depth + 1))
    assert tally.drafted == sum(tally.accepted_per_position) == 40 - tally.rounds


def test_a_head_that_is_never_right_costs_no_token() -> None:
    out, tally = run(ScriptedContext(range(20), [False]), draft_tokens=3, max_tokens=21)
    assert out == [*range(20), 0]
    assert tally.accepted_per_position == [0, 0, 0]
    assert tally.rounds == 20


def test_acceptance_is_counted_per_position() -> None:
    # position p of the sequence is hit unless p % 4 == 2; the prompt has 3 tokens, a round of 3 drafts starts at 4
    _, tally = run(ScriptedContext(range(30), [True, True, False, True]), draft_tokens=3, max_tokens=12)
    assert sum(tally.accepted_per_position) + tally.rounds == 11
    assert tally.accepted_per_position == sorted(tally.accepted_per_position, reverse=True)


def test_drafts_that_max_tokens_would_cut_are_not_made() -> None:
    context = ScriptedContext(range(30), [True])
    run(context, draft_tokens=8, max_tokens=4)
    assert context.longest_verify == 3  # one token came from the prompt, one comes from the last row


def test_a_caller_that_leaves_between_rounds_leaves_the_caches_at_the_cut() -> None:
    context = ScriptedContext(range(30), [True, False])
    rounds = speculate(context, [1], greedy, lambda _: False, Tally(), draft_tokens=4, max_tokens=30)
    out = next(rounds) + next(rounds)
    rounds.close()
    assert context.tokens == [1, *out[:-1]]


def test_each_position_is_drawn_and_judged_once_and_in_order() -> None:
    drawn: list[int] = []
    judged: list[int] = []

    def draw(logits: Logits, position: int) -> int:
        drawn.append(position)
        return int(logits.argmax())

    def ends(token: int) -> bool:
        judged.append(token)
        return False

    context = ScriptedContext(range(30), [True, False, True])
    out = [t for r in speculate(context, [1, 1], draw, ends, Tally(), draft_tokens=0, max_tokens=9) for t in r]
    assert drawn == list(range(2, 11))
    assert judged == out


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_draft_is_drawn_for_the_position_it_stands_for(depth: int) -> None:
    positions: dict[int, set[int]] = {}

    def draw(logits: Logits, position: int) -> int:
        token = int(logits.argmax())
        positions.setdefault(position, set()).add(token)
        return token

    context = ScriptedContext(range(30), [True])
    list(speculate(context, [1, 1], draw, lambda _: False, Tally(), draft_tokens=depth, max_tokens=20))
    # the head is always right, so at each position draft and target draw the same token
    assert all(len(tokens) == 1 for tokens in positions.values())
