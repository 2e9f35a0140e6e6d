"""Claims about the loop, on a scripted context: no model, every acceptance pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.scripted import VOCAB, ScriptedContext
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import AutoDepth, Costs, Depth, FixedDepth
from pymtp.engine.rounds import write_alone
from pymtp.stats import Tally


class Scripted(FixedDepth):
    """A depth that changes from round to round, and throws drafts away."""

    def __init__(self, plan: Sequence[tuple[int, int]]) -> None:
        super().__init__(0)
        self.plan, self.round = plan, 0
        self.seen: list[tuple[int, int, int]] = []
        self.took: list[float] = []

    def choose(self, room: int, n_past: int) -> int:
        self.round += 1
        return min(room, self.plan[self.round % len(self.plan)][0])

    def keep(self, confidences: Sequence[float]) -> int:
        return max(0, len(confidences) - self.plan[self.round % len(self.plan)][1])

    def observe(
        self, drafted: int, verified: int, right: int, draft_seconds: float, verify_seconds: float, _: object
    ) -> None:
        self.seen.append((drafted, verified, right))
        self.took.append(draft_seconds + verify_seconds)


def run(
    context: ScriptedContext,
    *,
    draft_tokens: int = 0,
    depth: Depth | None = None,
    max_tokens: int,
    end: int | None = None,
    prompt: int = 3,
) -> tuple[list[int], Tally]:
    tally = Tally()
    out: list[int] = []
    depth = depth or FixedDepth(draft_tokens)
    rounds = write_alone(context, [1] * prompt, lambda token: token == end, tally, depth, max_tokens=max_tokens)
    for tokens in rounds:
        assert tokens
        out += tokens
        assert context.tokens() == [1] * prompt + out[:-1], "the caches are at the cut whenever the loop yields"
    return out, tally


texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60)
hits = st.lists(st.booleans(), min_size=1, max_size=20)


@given(texts, hits, st.integers(0, 8), st.integers(1, 200))
def test_the_text_is_the_targets_however_auto_chooses(
    text: list[int], hits: list[bool], most: int, max_tokens: int
) -> None:
    context = ScriptedContext(text, hits)
    out, tally = run(context, depth=AutoDepth(Costs(), most), max_tokens=max_tokens)
    assert out == (text + [0] * max_tokens)[:max_tokens]
    assert max(tally.depths, default=0) <= most


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


@pytest.mark.parametrize(
    ("hits", "outside", "counted"),
    [
        ([False], {4, 5, 9}, [3, 0, 0]),  # each round begins with a wrong draft
        ([True, False], {4, 8, 9}, [0, 2, 0]),  # the second of each round is wrong, for tokens 2, 4, 6, …
        ([True], set(range(20)), [0, 0, 0]),
        ([False], set(), [0, 0, 0]),
    ],
)
def test_a_rejection_is_counted_apart_where_the_right_token_could_not_be_drafted(
    hits: list[bool], outside: set[int], counted: list[int]
) -> None:
    context = ScriptedContext(range(20), hits)
    context.outside = outside
    _, tally = run(context, draft_tokens=3, max_tokens=20)
    assert tally.outside_per_position == counted


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
    rounds = write_alone(context, [1], lambda _: False, Tally(), FixedDepth(4), max_tokens=30)
    out = next(rounds) + next(rounds)
    rounds.close()
    assert context.tokens() == [1, *out[:-1]]


def test_each_token_is_judged_once_and_in_order() -> None:
    judged: list[int] = []

    def ends(token: int) -> bool:
        judged.append(token)
        return False

    context = ScriptedContext(range(30), [True, False, True])
    rounds = list(write_alone(context, [1, 1], ends, Tally(), FixedDepth(3), max_tokens=9))
    assert judged == [token for tokens in rounds for token in tokens]


@given(texts, hits, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=6))
def test_the_text_does_not_depend_on_the_depths_or_on_drafts_thrown_away(
    text: list[int], hits: list[bool], plan: list[tuple[int, int]]
) -> None:
    depth = Scripted(plan)
    out, tally = run(ScriptedContext(text, hits), depth=depth, max_tokens=40)
    assert out == (text + [0] * 40)[:40]
    assert tally.depths == [verified for _, verified, _ in depth.seen]
    assert tally.drafted == sum(tally.depths)
    assert tally.discarded == sum(drafted - verified for drafted, verified, _ in depth.seen)
    assert sum(tally.accepted_per_position) == sum(min(verified, right) for _, verified, right in depth.seen)


@given(texts, hits, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=6))
def test_the_depth_is_told_of_the_first_draft_that_was_thrown_away(
    text: list[int], hits: list[bool], plan: list[tuple[int, int]]
) -> None:
    depth = Scripted(plan)
    run(ScriptedContext(text, hits), depth=depth, max_tokens=40)
    position = 3  # of the token that a round starts with; the prompt has 3
    for drafted, verified, right in depth.seen:
        truth = [*(hits[(position + 1 + i) % len(hits)] for i in range(drafted)), False].index(False)
        assert right == min(truth, verified + 1, drafted)
        position += 1 + min(truth, verified)


@pytest.mark.parametrize("max_tokens", [2, 5])
def test_the_depth_is_told_how_much_room_there_is(max_tokens: int) -> None:
    rooms: list[int] = []

    class Nosy(FixedDepth):
        def choose(self, room: int, n_past: int) -> int:
            rooms.append(room)
            return super().choose(room, n_past)

    run(ScriptedContext(range(30), [False]), depth=Nosy(8), max_tokens=max_tokens)
    assert rooms == list(range(max_tokens - 2, -1, -1))  # a round brings one token more than it drafts


def test_the_depth_is_told_of_all_that_a_round_takes_but_the_callers_time() -> None:
    now = 0

    def later(seconds: int) -> None:
        nonlocal now
        now += seconds

    class Slow(ScriptedContext):
        def draft_chains(self, *arguments: Any) -> Any:
            later(1)
            return super().draft_chains(*arguments)

        def verify_chains(self, *arguments: Any) -> Any:
            later(10)
            return super().verify_chains(*arguments)

        def rewind(self, *arguments: Any) -> None:
            later(100)
            super().rewind(*arguments)

    def ends(_: int) -> bool:
        later(1000)
        return False

    depth = Scripted([(2, 0)])
    rounds = write_alone(Slow(range(30), [True, False]), [1], ends, Tally(), depth, max_tokens=6, clock=lambda: now)
    for _ in rounds:
        later(10**6)
    assert depth.took == [2111, 2111, 1010]
