"""Claims about what is learnt of a machine's costs."""

from __future__ import annotations

from random import Random

import pytest
from helpers.estimates import WARM
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import Costs

counts = st.integers(1, 9)
seconds = st.floats(1e-6, 10)
observations = st.lists(st.tuples(counts, seconds, counts, seconds), max_size=60)


def timed(costs: Costs, rows: int, took: float, times: int = 1, n_past: int = 0) -> None:
    for _ in range(times):
        costs.observe(n_past, 0, 0.0, rows, took, WARM)


def verify_costs(**timings: float) -> Costs:
    """Costs of verifications timed thrice each: r1=0.01 for one row."""
    costs = Costs()
    for rows, took in timings.items():
        timed(costs, int(rows[1:]), took, 3)
    return costs


@given(observations)
def test_whatever_was_timed_estimates_are_positive_and_no_less_than_the_least(
    seen: list[tuple[int, float, int, float]],
) -> None:
    costs = verify_costs(r1=0.01)
    for drafted, draft_seconds, rows, verify_seconds in seen:
        costs.observe(0, drafted, draft_seconds, rows, verify_seconds, WARM)
    likely, least = costs.rounds(8)
    assert likely[1:] == [costs.draft_seconds(n) + costs.verify_seconds(1 + n) for n in range(1, 9)]
    assert likely[0] == min(likely), "nothing is faster than plain decoding"
    assert all(0 < a <= b for a, b in zip(least, likely, strict=True))


def test_a_busy_machine_hardly_moves_the_estimate() -> None:
    for seed in range(20):
        luck = Random(seed)
        costs = verify_costs(r1=0.01)
        for _ in range(100):
            timed(costs, 1, 0.01 * luck.uniform(0.9, 1.1) * (10 if luck.random() < 0.05 else 1))
        assert costs.verify_seconds(1) == pytest.approx(0.01, rel=0.1)


def test_one_spoilt_timing_does_not_count_for_long() -> None:
    costs = verify_costs(r1=0.01)
    timed(costs, 4, 0.2)
    timed(costs, 4, 0.02, 3)
    assert costs.verify_seconds(4) == pytest.approx(0.02, rel=0.15)


def test_what_was_measured_first_and_wrong_is_put_right_in_some_rounds_and_others_stay_as_they_are() -> None:
    for wrong in (0.7, 1.3):
        costs = Costs()
        costs.begin({1: 0.010, 4: wrong * 0.016, 8: 0.025}, {3: 0.003})
        timed(costs, 4, 0.016, 8)
        assert costs.verify_seconds(4) == pytest.approx(0.016, rel=0.06)
        assert costs.verify_seconds(1) == pytest.approx(0.010, rel=0.15)
        assert costs.verify_seconds(8) == pytest.approx(0.025, rel=0.15)


def test_a_machine_that_becomes_slower_makes_every_count_dearer() -> None:
    costs = Costs()
    costs.begin({1: 0.010, 4: 0.016, 8: 0.025}, {3: 0.003})
    timed(costs, 4, 0.016, 100)
    timed(costs, 4, 0.020, 40)
    assert costs.verify_seconds(4) == pytest.approx(0.020, rel=0.02)
    assert costs.verify_seconds(8) == pytest.approx(0.031, rel=0.04)


def test_counts_never_timed_lie_between_their_neighbours_or_beyond_them() -> None:
    costs = verify_costs(r1=0.010, r4=0.016, r8=0.020)
    assert costs.verify_seconds(2) == pytest.approx(0.0125, rel=0.03)
    assert costs.verify_seconds(6) == pytest.approx(0.018, rel=0.03)
    assert costs.verify_seconds(16) == pytest.approx(0.025, rel=0.1)


def test_four_rows_may_be_cheaper_than_three() -> None:
    costs = verify_costs(r1=0.015, r3=0.038, r4=0.028)
    assert costs.verify_seconds(3) > costs.verify_seconds(4)


def test_a_count_not_timed_may_turn_out_cheaper_but_no_cheaper_than_fewer_rows() -> None:
    costs = verify_costs(r1=0.010, r2=0.018)
    likely, least = costs.rounds(7)
    assert least[1] == pytest.approx(likely[1], rel=0.1)
    assert least[7] < 0.8 * likely[7]
    assert least[7] - costs.draft_seconds(7) >= costs.verify_seconds(2)


def test_costs_follow_a_context_that_grows_and_those_not_timed_for_long_go_with_them() -> None:
    costs = verify_costs(r1=0.010, r3=0.013)
    for i in range(400):
        timed(costs, 1, 0.010 + 2.5e-5 * i)
    assert costs.verify_seconds(1) == pytest.approx(0.020, rel=0.03)
    assert costs.verify_seconds(3) == pytest.approx(0.024, rel=0.1)


def test_a_depth_timed_long_ago_is_open_again_and_the_more_the_longer_it_is_ago() -> None:
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
    assert costs.verify_seconds(3) == pytest.approx(0.020, rel=0.05), "what was timed before does not outvote it"


def test_what_attention_adds_is_learnt_from_a_context_that_grows_and_holds_for_other_counts_and_lengths() -> None:
    costs = Costs()
    for request in range(20):
        for n_past in range(0, 400, 4):
            timed(costs, 1, 0.010 + 1.5e-5 * n_past, n_past=n_past)
        timed(costs, 4, 0.016 + 4 * 1.5e-5 * 400, 10 if request == 0 else 1, n_past=400)
    for n_past in (0, 200, 800):
        assert costs.verify_seconds(1, n_past) == pytest.approx(0.010 + 1.5e-5 * n_past, rel=0.1)
        assert costs.verify_seconds(4, n_past) == pytest.approx(0.016 + 4 * 1.5e-5 * n_past, rel=0.15)


def test_a_first_round_of_its_kind_makes_nothing_look_dearer() -> None:
    costs = verify_costs(r1=0.010, r2=0.014)
    costs.observe(0, 0, 0.0, 2, 0.100, 0)
    assert costs.verify_seconds(2) == pytest.approx(0.014, rel=0.01)
