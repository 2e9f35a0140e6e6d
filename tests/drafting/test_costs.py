"""Tests of RoundCosts: the estimates that it learns from timed rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import RoundCosts, RoundTime

seconds = st.floats(1e-6, 10)
observations = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 9), seconds, seconds), max_size=60)


def timed(costs: RoundCosts, verified: int, took: float, times: int = 1, n_seqs: int = 1) -> None:
    for _ in range(times):
        costs.observe(n_seqs, 0, 0.0, verified, took)


def measured(**rows: float) -> RoundCosts:
    """Return RoundCosts with measured verifications, and drafts that cost nothing: r1=0.01 means 10 ms for one row."""
    costs = RoundCosts()
    costs.begin({(1, int(n[1:]) - 1): RoundTime(1e-9, took) for n, took in rows.items()})
    return costs


def verify_seconds(costs: RoundCosts, rows: Sequence[int], n_seqs: int = 1) -> list[float]:
    found = costs.rounds(n_seqs, 15)
    return [found[n - 1] for n in rows]


@given(observations)
def test_round_costs_are_positive_and_more_drafts_never_cost_less(seen: list[tuple[int, int, float, float]]) -> None:
    costs = measured(r1=0.01)
    for n_seqs, drafted, draft_seconds, verify in seen:
        costs.observe(n_seqs, drafted, draft_seconds, drafted, verify)
    for n_seqs in (1, 3, 8):
        found = costs.rounds(n_seqs, 8)
        assert found == sorted(found)
        assert 0 < found[0] <= found[-1] < math.inf


def test_round_costs_are_infinite_until_a_round_was_timed_a_few_times() -> None:
    costs = RoundCosts()
    timed(costs, 0, 0.5)  # the first round loads weights and allocates memory
    assert costs.rounds(1, 3) == [math.inf] * 4
    timed(costs, 0, 0.01, 3)
    assert costs.rounds(1, 0)[0] == pytest.approx(0.01, rel=0.01)


def test_round_costs_hardly_change_on_a_busy_machine() -> None:
    for seed in range(20):
        luck = Random(seed)
        costs = measured(r1=0.01)
        for _ in range(100):
            timed(costs, 0, 0.01 * luck.uniform(0.9, 1.1) * (10 if luck.random() < 0.05 else 1))
        assert costs.rounds(1, 0)[0] == pytest.approx(0.01, rel=0.1)


def test_round_costs_replace_one_wrong_first_measurement_and_keep_the_others() -> None:
    for wrong in (0.7, 1.3, 10.0):
        costs = measured(r1=0.010, r4=wrong * 0.016, r8=1.0)
        timed(costs, 3, 0.016, 40)
        assert verify_seconds(costs, [1, 4, 8]) == pytest.approx([0.010, 0.016, 1.0], rel=0.1)


def test_round_costs_of_all_row_counts_rise_at_once_on_a_slower_machine() -> None:
    costs = measured(r1=0.010, r4=0.016, r8=0.025)
    timed(costs, 3, 0.016, 100)
    timed(costs, 3, 0.020, 15)
    assert verify_seconds(costs, [4, 8]) == pytest.approx([0.020, 0.029], rel=0.08)


def test_round_costs_of_unmeasured_row_counts_are_interpolated() -> None:
    costs = measured(r1=0.010, r4=0.016, r8=0.020)
    assert verify_seconds(costs, [2, 6, 16]) == pytest.approx([0.012, 0.018, 0.028], rel=0.03)


def test_rounds_of_several_sequences_cost_what_their_rows_cost() -> None:
    costs = measured(r1=0.010, r4=0.016, r8=0.020)
    assert verify_seconds(costs, [1, 2], n_seqs=4) == pytest.approx([0.016, 0.020], rel=0.03)
    timed(costs, 1, 0.030, 60, n_seqs=4)
    assert verify_seconds(costs, [8])[0] == pytest.approx(0.030, rel=0.05)


def test_chains_of_unmeasured_numbers_of_sequences_are_interpolated() -> None:
    costs = RoundCosts()
    costs.begin({(n, d): RoundTime(0.001 * n * d, 0.010) for n in (1, 8) for d in (0, 1, 3)})
    for n in (1, 2, 5, 8):
        found = costs.rounds(n, 3)
        assert [found[d] - found[0] for d in (1, 2, 3)] == pytest.approx([0.001 * n * d for d in (1, 2, 3)])


def test_disturbed_measurement_of_few_rows_costs_no_more_than_more_rows() -> None:
    costs = measured(r1=0.020, r4=0.080, r8=0.030)
    assert verify_seconds(costs, [1, 4, 8]) == pytest.approx([0.020, 0.030, 0.030])


def test_first_round_of_a_row_count_counts_only_if_it_was_fast() -> None:
    costs = measured(r1=0.010, r8=0.020)
    timed(costs, 1, 0.100)
    assert verify_seconds(costs, [2])[0] < 0.012
    timed(costs, 1, 0.014, 3)
    assert verify_seconds(costs, [2])[0] == pytest.approx(0.014, rel=0.03)


def test_drafts_after_a_round_without_drafts_do_not_count_as_the_cost_of_a_chain() -> None:
    costs = RoundCosts()
    costs.begin({(1, 0): RoundTime(0.0, 0.010), (1, 3): RoundTime(0.003, 0.010)})
    for _ in range(20):  # the head first catches up with the target
        costs.observe(1, 0, 0.0, 0, 0.010)
        costs.observe(1, 3, 0.009, 3, 0.010)
    assert costs.rounds(1, 3)[3] == pytest.approx(0.013, rel=0.01)


def test_extra_time_of_the_first_of_equal_rounds_does_not_count_as_the_cost_of_its_depth() -> None:
    costs = measured(r1=0.010, r4=0.016)
    for _ in range(20):
        for verified, took in ((0, 0.010), (3, 0.016)):
            timed(costs, verified, took + 0.005)
            timed(costs, verified, took, 2)
    assert verify_seconds(costs, [1, 4]) == pytest.approx([0.010, 0.016], rel=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_impossible_times_are_ignored(seconds: float) -> None:
    costs = measured(r1=0.010, r4=0.016)
    before = costs.rounds(2, 7)
    for _ in range(3):
        costs.observe(2, 2, seconds, 2, seconds)
    assert costs.rounds(2, 7) == before
