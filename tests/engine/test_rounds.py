"""Tests of the speculative decoding loop with any pattern of acceptance, over a scripted context without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.scripted import VOCAB, ScriptedContext
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import AutoDepth, DepthPolicy, FixedDepth, RoundCosts
from pymtp.engine.rounds import generate_single
from pymtp.stats import DraftStats


class ScriptedDepth(FixedDepth):
    """A depth policy whose depth changes from round to round, and which discards some drafts."""

    def __init__(self, plan: Sequence[tuple[int, int]]) -> None:
        super().__init__(0)
        self.plan, self.round = plan, 0
        self.observed: list[tuple[int, int, int]] = []
        self.seconds: list[float] = []

    def choose(self, room: int, n_past: int) -> int:
        self.round += 1
        return min(room, self.plan[self.round % len(self.plan)][0])

    def n_to_verify(self, confidences: Sequence[float]) -> int:
        return max(0, len(confidences) - self.plan[self.round % len(self.plan)][1])

    def observe(self, drafted: int, verified: int, right: int, draft_seconds: float, verify_seconds: float) -> None:
        self.observed.append((drafted, verified, right))
        self.seconds.append(draft_seconds + verify_seconds)


def run(
    context: ScriptedContext,
    *,
    draft_tokens: int = 0,
    depth: DepthPolicy | None = None,
    max_tokens: int,
    end: int | None = None,
    prompt: int = 3,
) -> tuple[list[int], DraftStats]:
    draft_stats = DraftStats()
    out: list[int] = []
    depth = depth or FixedDepth(draft_tokens)
    rounds = generate_single(
        context, [1] * prompt, lambda token: token == end, draft_stats, depth, max_tokens=max_tokens
    )
    for tokens in rounds:
        assert tokens
        out += tokens
        assert context.tokens() == [1] * prompt + out[:-1], "after each yield the context holds all tokens but the last"
    return out, draft_stats


texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60)
hits = st.lists(st.booleans(), min_size=1, max_size=20)


@given(texts, hits, st.integers(0, 8), st.integers(1, 200))
def test_output_is_that_of_the_target_model_at_any_automatic_depth(
    text: list[int], hits: list[bool], max_depth: int, max_tokens: int
) -> None:
    context = ScriptedContext(text, hits)
    out, draft_stats = run(context, depth=AutoDepth(RoundCosts(), max_depth).add_sequence(0.0), max_tokens=max_tokens)
    assert out == (text + [0] * max_tokens)[:max_tokens]
    assert max(draft_stats.depths, default=0) <= max_depth


@given(texts, hits, st.integers(0, 8), st.integers(1, 60))
def test_output_is_that_of_the_target_model_for_any_drafts(
    text: list[int], hits: list[bool], depth: int, max_tokens: int
) -> None:
    out, _ = run(ScriptedContext(text, hits), draft_tokens=depth, max_tokens=max_tokens)
    assert out == (text + [0] * max_tokens)[:max_tokens]


@given(texts, hits, st.integers(0, 8), st.integers(0, VOCAB - 1))
def test_end_token_among_accepted_drafts_ends_the_output(
    text: list[int], hits: list[bool], depth: int, end: int
) -> None:
    text = [*text, end]
    out, _ = run(ScriptedContext(text, hits), draft_tokens=depth, max_tokens=1000, end=end)
    assert out == text[: text.index(end) + 1]


@given(texts, hits, st.integers(0, 8), st.integers(4, 40))
def test_output_fills_the_context_to_its_last_token(text: list[int], hits: list[bool], depth: int, n_ctx: int) -> None:
    context = ScriptedContext(text, hits, n_ctx)
    out, _ = run(context, draft_tokens=depth, max_tokens=1000)
    assert len(out) == n_ctx - 3 + 1  # the last output token needs no room in the context


@given(st.integers(1, 8))
def test_perfect_head_needs_one_round_per_depth_plus_one_tokens(depth: int) -> None:
    text = list(range(40))
    _, draft_stats = run(ScriptedContext(text, [True]), draft_tokens=depth, max_tokens=41)
    assert draft_stats.rounds == -(-40 // (depth + 1))
    assert draft_stats.drafted == sum(draft_stats.accepted_per_position) == 40 - draft_stats.rounds


def test_time_of_a_choice_is_no_time_of_drafts() -> None:
    seconds = [0.0]

    class SlowChoice(ScriptedDepth):
        def choose(self, room: int, n_past: int) -> int:
            seconds[0] += 5.0
            return super().choose(room, n_past)

    depth = SlowChoice([(2, 0)])
    context = ScriptedContext(range(20), [True])
    rounds = generate_single(
        context, [1] * 3, lambda _: False, DraftStats(), depth, max_tokens=10, clock=lambda: seconds[0]
    )
    assert sum(map(len, rounds)) == 10
    assert depth.observed
    assert not any(depth.seconds)


def test_output_is_complete_if_all_drafts_are_wrong() -> None:
    out, draft_stats = run(ScriptedContext(range(20), [False]), draft_tokens=3, max_tokens=21)
    assert out == [*range(20), 0]
    assert draft_stats.accepted_per_position == [0, 0, 0]
    assert draft_stats.rounds == 20


@pytest.mark.parametrize(
    ("hits", "never_drafted", "counted"),
    [
        ([False], {4, 5, 9}, [3, 0, 0]),  # the first draft of each round is wrong
        ([True, False], {4, 8, 9}, [0, 2, 0]),  # the second draft of each round is wrong: tokens 2, 4, 6, …
        ([True], set(range(20)), [0, 0, 0]),
        ([False], set(), [0, 0, 0]),
    ],
)
def test_rejections_outside_the_draft_vocabulary_are_counted(
    hits: list[bool], never_drafted: set[int], counted: list[int]
) -> None:
    context = ScriptedContext(range(20), hits)
    context.never_drafted = never_drafted
    _, draft_stats = run(context, draft_tokens=3, max_tokens=20)
    assert draft_stats.outside_per_position == counted


def test_draft_stats_count_acceptance_per_position() -> None:
    # the draft at position p is right unless p % 4 == 2; the prompt has 3 tokens, a round of 3 drafts starts at 4
    _, draft_stats = run(ScriptedContext(range(30), [True, True, False, True]), draft_tokens=3, max_tokens=12)
    assert sum(draft_stats.accepted_per_position) + draft_stats.rounds == 11
    assert draft_stats.accepted_per_position == sorted(draft_stats.accepted_per_position, reverse=True)


def test_no_draft_is_made_for_a_token_after_max_tokens() -> None:
    context = ScriptedContext(range(30), [True])
    run(context, draft_tokens=8, max_tokens=4)
    assert context.max_verify_rows == 3  # the other token of the four is sampled after the prefill


def test_context_holds_all_tokens_but_the_last_after_the_iteration_is_stopped() -> None:
    context = ScriptedContext(range(30), [True, False])
    rounds = generate_single(context, [1], lambda _: False, DraftStats(), FixedDepth(4), max_tokens=30)
    out = next(rounds) + next(rounds)
    rounds.close()
    assert context.tokens() == [1, *out[:-1]]


def test_is_end_is_called_once_for_each_token_in_order() -> None:
    tokens_seen: list[int] = []

    def is_end(token: int) -> bool:
        tokens_seen.append(token)
        return False

    context = ScriptedContext(range(30), [True, False, True])
    rounds = list(generate_single(context, [1, 1], is_end, DraftStats(), FixedDepth(3), max_tokens=9))
    assert tokens_seen == [token for tokens in rounds for token in tokens]


@given(texts, hits, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=6))
def test_output_does_not_depend_on_depths_or_discarded_drafts(
    text: list[int], hits: list[bool], plan: list[tuple[int, int]]
) -> None:
    depth = ScriptedDepth(plan)
    out, draft_stats = run(ScriptedContext(text, hits), depth=depth, max_tokens=40)
    assert out == (text + [0] * 40)[:40]
    assert draft_stats.depths == [verified for _, verified, _ in depth.observed]
    assert draft_stats.drafted == sum(draft_stats.depths)
    assert draft_stats.discarded == sum(drafted - verified for drafted, verified, _ in depth.observed)
    assert sum(draft_stats.accepted_per_position) == sum(min(verified, right) for _, verified, right in depth.observed)


@given(texts, hits, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=6))
def test_depth_policy_learns_whether_the_first_discarded_draft_was_right(
    text: list[int], hits: list[bool], plan: list[tuple[int, int]]
) -> None:
    depth = ScriptedDepth(plan)
    run(ScriptedContext(text, hits), depth=depth, max_tokens=40)
    position = 3  # position of the first token of a round; the prompt has 3 tokens
    for drafted, verified, right in depth.observed:
        truth = [*(hits[(position + 1 + i) % len(hits)] for i in range(drafted)), False].index(False)
        assert right == min(truth, verified + 1, drafted)
        position += 1 + min(truth, verified)


@pytest.mark.parametrize("max_tokens", [2, 5])
def test_depth_policy_gets_the_draft_limit(max_tokens: int) -> None:
    limits: list[int] = []

    class RecordingDepth(FixedDepth):
        def choose(self, room: int, n_past: int) -> int:
            limits.append(room)
            return super().choose(room, n_past)

    run(ScriptedContext(range(30), [False]), depth=RecordingDepth(8), max_tokens=max_tokens)
    assert limits == list(range(max_tokens - 2, -1, -1))  # a round generates one token more than its drafts


def test_depth_policy_gets_the_whole_time_of_a_round_without_the_time_of_the_caller() -> None:
    now = 0

    def spend(seconds: int) -> None:
        nonlocal now
        now += seconds

    class SlowContext(ScriptedContext):
        def draft_chains(self, *arguments: Any) -> Any:
            spend(1)
            return super().draft_chains(*arguments)

        def verify_chains(self, *arguments: Any) -> Any:
            spend(10)
            return super().verify_chains(*arguments)

        def rewind(self, *arguments: Any) -> None:
            spend(100)
            super().rewind(*arguments)

    def is_end(_: int) -> bool:
        spend(1000)
        return False

    depth = ScriptedDepth([(2, 0)])
    rounds = generate_single(
        SlowContext(range(30), [True, False]), [1], is_end, DraftStats(), depth, max_tokens=6, clock=lambda: now
    )
    for _ in rounds:
        spend(10**6)
    assert depth.seconds == [2111, 2111, 1010]
