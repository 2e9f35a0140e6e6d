"""Tests of checkpoint planning: where in a prompt prefill stops for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

import hypothesis.strategies as st
from hypothesis import given

from pymtp.prefix_cache.checkpoints import MAX_CHECKPOINTS, plan_checkpoints
from pymtp.prefix_cache.tree import CheckpointReason


def plan(
    n_tokens: int,
    n_cached: int = 0,
    *,
    max_checkpoints: int = 99,
    alignment: int = 64,
    shared_tokens: int = 0,
    branch_points: Iterable[int] = (),
):
    return plan_checkpoints(
        n_tokens,
        n_cached,
        min_gain=64,
        alignment=alignment,
        n_ubatch=512,
        max_checkpoints=max_checkpoints,
        shared_tokens=shared_tokens,
        branch_points=branch_points,
    )


def test_checkpoints_are_planned_at_branches_at_the_end_and_at_intervals() -> None:
    assert plan(2248, shared_tokens=1300, branch_points=[200, 1900]) == {
        192: CheckpointReason.BRANCH_EXPECTED,
        512: CheckpointReason.INTERVAL,
        1280: CheckpointReason.BRANCH_SEEN,
        1536: CheckpointReason.INTERVAL,
        1856: CheckpointReason.BRANCH_EXPECTED,
        2048: CheckpointReason.INTERVAL,
        2248: CheckpointReason.PROMPT_END,
    }


def test_prompt_that_continues_a_text_gets_a_checkpoint_near_its_end_without_branch_points() -> None:
    assert plan(301, shared_tokens=64) == {64: CheckpointReason.BRANCH_SEEN, 256: CheckpointReason.NEAR_END}
    assert plan(401, n_cached=100, alignment=1) == {393: CheckpointReason.NEAR_END}
    assert plan(301, shared_tokens=64, branch_points=[290]) == {
        64: CheckpointReason.BRANCH_SEEN,
        256: CheckpointReason.BRANCH_EXPECTED,
    }


def test_prompt_without_a_known_prefix_gets_checkpoints_only_at_ends_of_ubatches() -> None:
    for length in (100, 2000, 40_001):
        assert all(position % 512 == 0 for position in plan(length))


def test_end_of_a_prompt_gets_a_checkpoint_if_it_continues_a_text_or_is_expected_again() -> None:
    assert plan(1248) == {512: CheckpointReason.INTERVAL, 1024: CheckpointReason.INTERVAL}
    assert plan(1248, branch_points=[1248]) == {
        512: CheckpointReason.INTERVAL,
        1024: CheckpointReason.INTERVAL,
        1248: CheckpointReason.PROMPT_END,
    }
    assert plan(1248, n_cached=100, alignment=1) == {
        512: CheckpointReason.INTERVAL,
        1024: CheckpointReason.INTERVAL,
        1240: CheckpointReason.NEAR_END,
    }
    assert plan(1248, shared_tokens=700, branch_points=[900]) == {
        512: CheckpointReason.INTERVAL,
        640: CheckpointReason.BRANCH_SEEN,
        896: CheckpointReason.BRANCH_EXPECTED,
        1024: CheckpointReason.INTERVAL,
        1248: CheckpointReason.PROMPT_END,
    }


def test_least_important_checkpoints_are_left_out_first() -> None:
    def reasons(max_checkpoints: int) -> set[CheckpointReason]:
        return set(plan(2248, shared_tokens=1300, branch_points=[1900], max_checkpoints=max_checkpoints).values())

    assert reasons(0) == set()
    assert reasons(1) == {CheckpointReason.BRANCH_SEEN}
    assert reasons(2) == {CheckpointReason.BRANCH_SEEN, CheckpointReason.BRANCH_EXPECTED}
    assert reasons(3) == {CheckpointReason.BRANCH_SEEN, CheckpointReason.BRANCH_EXPECTED, CheckpointReason.PROMPT_END}
    assert list(plan(40_000, max_checkpoints=2)) == [39_424, 39_936]  # the last two of the interval checkpoints


def test_number_of_checkpoints_is_limited() -> None:
    assert len(plan(40_000, branch_points=range(1000, 40_000, 1000))) == MAX_CHECKPOINTS


def test_gaps_between_interval_checkpoints_grow_with_the_distance_from_the_end() -> None:
    assert [position for position, reason in plan(8192).items() if reason == CheckpointReason.INTERVAL] == [
        4096,
        6144,
        7168,
        7680,
    ]
    for length in (300, 2048, 40_000, 90_001):
        checkpoints = [0, *plan(length)]
        for branch in range(64, length, 97):  # position where another text branches off
            nearest = max(position for position in checkpoints if position <= branch)
            assert branch - nearest <= 512 + 2 * (length - branch)


def test_only_the_first_of_several_close_branch_points_gets_a_checkpoint() -> None:
    assert plan(250, alignment=1, branch_points=[100, 130, 163, 170]) == {
        100: CheckpointReason.BRANCH_EXPECTED,
        170: CheckpointReason.BRANCH_EXPECTED,
    }
    assert plan(250, alignment=1, shared_tokens=220, branch_points=[200]) == {200: CheckpointReason.BRANCH_EXPECTED}
    assert plan(400, 190, alignment=1, branch_points=[200, 260]) == {260: CheckpointReason.BRANCH_EXPECTED}


def test_no_checkpoint_is_planned_where_it_saves_few_tokens() -> None:
    assert plan(60) == {}
    assert plan(2100, 2048) == {}
    assert plan(2040, 1984, shared_tokens=2039) == {}


@given(
    n_tokens=st.integers(1, 200_000),
    cached_share=st.floats(0, 1),
    alignment=st.sampled_from([1, 16, 64]),
    max_checkpoints=st.integers(0, 40),
    shared_tokens=st.integers(0, 200_000),
    branch_points=st.lists(st.integers(0, 200_000), max_size=5),
)
def test_planned_checkpoints_are_few_and_all_but_the_end_are_aligned(
    n_tokens: int,
    cached_share: float,
    alignment: int,
    max_checkpoints: int,
    shared_tokens: int,
    branch_points: list[int],
) -> None:
    n_cached = int(n_tokens * cached_share)
    planned = plan(
        n_tokens,
        n_cached,
        max_checkpoints=max_checkpoints,
        alignment=alignment,
        shared_tokens=shared_tokens,
        branch_points=branch_points,
    )
    assert len(planned) <= min(max_checkpoints, MAX_CHECKPOINTS)
    assert list(planned) == sorted(planned)
    for position, reason in planned.items():
        assert n_cached + 64 <= position <= n_tokens
        assert position % alignment == 0 or (position == n_tokens and reason == CheckpointReason.PROMPT_END)
