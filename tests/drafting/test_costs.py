"""Tests of RoundCosts: the estimates that it learns from timed rounds."""

from __future__ import annotations

from random import Random

import pytest
from helpers.estimates import WARM
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import RoundCosts

counts = st.integers(1, 9)
seconds = st.floats(1e-6, 10)
observations = st.lists(st.tuples(counts, seconds, counts, seconds), max_size=60)


def timed(costs: RoundCosts, rows: int, took: float, times: int = 1, n_past: int = 0) -> None:
    for _ in range(times):
        costs.observe(n_past, 0, 0.0, rows, took, WARM)


def verify_costs(**timings: float) -> RoundCosts:
    """Return RoundCosts after three timings of each verification: r1=0.01 means 10 ms for one row."""
    costs = RoundCosts()
    for rows, took in timings.items():
        timed(costs, int(rows[1:]), took, 3)
    return costs


@given(observations)
def test_round_costs_are_positive_and_at_least_their_lower_bound(
    seen: list[tuple[int, float, int, float]],
) -> None:
    costs = verify_costs(r1=0.01)
    for drafted, draft_seconds, rows, verify_seconds in seen:
        costs.observe(0, drafted, draft_seconds, rows, verify_seconds, WARM)
    likely, least = costs.rounds(8)
    assert likely[1:] == [costs.draft_seconds(n) + costs.verify_seconds(1 + n) for n in range(1, 9)]
    assert likely[0] == min(likely), "nothing is faster than plain decoding"
    assert all(0 < a <= b for a, b in zip(least, likely, strict=True))


def test_round_costs_hardly_change_on_a_busy_machine() -> None:
    for seed in range(20):
        luck = Random(seed)
        costs = verify_costs(r1=0.01)
        for _ in range(100):
            timed(costs, 1, 0.01 * luck.uniform(0.9, 1.1) * (10 if luck.random() < 0.05 else 1))
        assert costs.verify_seconds(1) == pytest.approx(0.01, rel=0.1)


def test_round_costs_forget_a_single_outlier() -> None:
    costs = verify_costs(r1=0.01)
    timed(costs, 4, 0.2)
    timed(costs, 4, 0.02, 3)
    assert costs.verify_seconds(4) == pytest.approx(0.02, rel=0.15)


def test_round_costs_correct_one_wrong_first_measurement_and_keep_the_others() -> None:
    for wrong in (0.7, 1.3):
        costs = RoundCosts()
        costs.begin({1: 0.010, 4: wrong * 0.016, 8: 0.025}, {3: 0.003})
        timed(costs, 4, 0.016, 8)
        assert costs.verify_seconds(4) == pytest.approx(0.016, rel=0.06)
        assert costs.verify_seconds(1) == pytest.approx(0.010, rel=0.15)
        assert costs.verify_seconds(8) == pytest.approx(0.025, rel=0.15)


def test_round_costs_of_all_row_counts_rise_on_a_slower_machine() -> None:
    costs = RoundCosts()
    costs.begin({1: 0.010, 4: 0.016, 8: 0.025}, {3: 0.003})
    timed(costs, 4, 0.016, 100)
    timed(costs, 4, 0.020, 40)
    assert costs.verify_seconds(4) == pytest.approx(0.020, rel=0.02)
    assert costs.verify_seconds(8) == pytest.approx(0.031, rel=0.04)


def test_round_costs_of_unmeasured_row_counts_are_interpolated() -> None:
    costs = verify_costs(r1=0.010, r4=0.016, r8=0.020)
    assert costs.verify_seconds(2) == pytest.approx(0.0125, rel=0.03)
    assert costs.verify_seconds(6) == pytest.approx(0.018, rel=0.03)
    assert costs.verify_seconds(16) == pytest.approx(0.025, rel=0.1)


def test_round_costs_of_four_rows_may_be_below_those_of_three() -> None:
    costs = verify_costs(r1=0.015, r3=0.038, r4=0.028)
    assert costs.verify_seconds(3) > costs.verify_seconds(4)


def test_round_costs_lower_bound_of_an_unmeasured_row_count_is_at_least_the_cost_of_fewer_rows() -> None:
    costs = verify_costs(r1=0.010, r2=0.018)
    likely, least = costs.rounds(7)
    assert least[1] == pytest.approx(likely[1], rel=0.1)
    assert least[7] < 0.8 * likely[7]
    assert least[7] - costs.draft_seconds(7) >= costs.verify_seconds(2)


def test_round_costs_grow_with_the_context_for_all_row_counts() -> None:
    costs = verify_costs(r1=0.010, r3=0.013)
    for i in range(400):
        timed(costs, 1, 0.010 + 2.5e-5 * i)
    assert costs.verify_seconds(1) == pytest.approx(0.020, rel=0.03)
    assert costs.verify_seconds(3) == pytest.approx(0.024, rel=0.1)


def test_round_costs_lower_bound_falls_with_the_age_of_the_measurement() -> None:
    costs = verify_costs(r1=0.010, r3=0.016)
    timed(costs, 3, 0.016, 10)
    hopes = []
    for _ in range(4):
        timed(costs, 1, 0.010, 400)
        likely, least = costs.rounds(2)
        hopes.append(least[2] / likely[2])
    assert hopes == sorted(hopes, reverse=True)
    assert hopes[-1] < hopes[0] - 0.02
    timed(costs, 3, 0.020, 20)
    assert costs.verify_seconds(3) == pytest.approx(0.020, rel=0.05), "many old timings do not outweigh a few new ones"


def test_round_costs_learn_the_attention_cost_per_token_for_all_row_counts() -> None:
    costs = RoundCosts()
    for request in range(20):
        for n_past in range(0, 400, 4):
            timed(costs, 1, 0.010 + 1.5e-5 * n_past, n_past=n_past)
        timed(costs, 4, 0.016 + 4 * 1.5e-5 * 400, 10 if request == 0 else 1, n_past=400)
    for n_past in (0, 200, 800):
        assert costs.verify_seconds(1, n_past) == pytest.approx(0.010 + 1.5e-5 * n_past, rel=0.1)
        assert costs.verify_seconds(4, n_past) == pytest.approx(0.016 + 4 * 1.5e-5 * n_past, rel=0.15)


def test_round_costs_ignore_the_first_round_of_a_row_count() -> None:
    costs = verify_costs(r1=0.010, r2=0.014)
    costs.observe(0, 0, 0.0, 2, 0.100, 0)
    assert costs.verify_seconds(2) == pytest.approx(0.014, rel=0.01)
