"""Tests of draft depths: the policies' choices on simulated machines and recorded drafts, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from helpers.simulate import (
    FAMILIES,
    MOST,
    UNSURE,
    Chances,
    Machine,
    best_fixed,
    falling_rates,
    measured_costs,
    new_policy,
    next_policy,
    replay,
    sample_machine,
    simulate,
    steady_text,
    text_that_changes,
    without_noise,
)
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import FixedDepth, RoundCosts

NEVER = [0.0] * MOST
GOOD = falling_rates(0.9, 0.97)
MIXED = [0.85, 0.75, 0.65, *[0.6] * 5]

SETTINGS = 12  # number of random machines and texts of each family
RUNS = 4  # number of simulations of each machine and text, with different random numbers


def draw_setting(family: str, i: int) -> tuple[Machine, Chances]:
    """Return a random machine of the family, and the acceptance of a random text."""
    luck = Random(f"{family} {i}")
    return sample_machine(family, luck), falling_rates(luck.uniform(0, 0.97), luck.uniform(0.85, 1))


rounds = st.lists(
    st.tuples(
        st.integers(0, 12),  # allowed maximum of drafts
        st.integers(0, 12),  # maximum of accepted drafts
        st.floats(1e-6, 10),  # seconds of the drafts
        st.floats(1e-6, 10),  # seconds of the verification
    ),
    max_size=40,
)


@given(rounds, st.integers(0, 12))
def test_depth_is_deterministic_and_at_most_the_allowed_maximum(
    past: list[tuple[int, int, float, float]], most: int
) -> None:
    histories = []
    for _ in range(2):
        policy = new_policy(most=most)
        kept = []
        for room, hits, draft_seconds, verify_seconds in past:
            drafted = policy.choose(room, 0)
            assert 0 <= drafted <= min(room, most)
            verified = policy.n_to_verify([0.5] * drafted)
            assert 0 <= verified <= drafted
            policy.observe(drafted, verified, min(hits, verified), draft_seconds, verify_seconds, ())
            kept.append((drafted, verified))
        histories.append(kept)
    assert histories[0] == histories[1]


@given(st.integers(0, 10), st.integers(0, 10))
def test_fixed_depth_is_lower_only_if_the_allowed_maximum_is_lower(n: int, room: int) -> None:
    policy = FixedDepth(n)
    drafted = policy.choose(room, 0)
    assert drafted == min(n, room)
    assert policy.n_to_verify([0.0] * drafted) == drafted
    policy.observe(drafted, drafted, 0, 0.1, 0.1, [0.0] * drafted)
    assert policy.choose(room, 0) == drafted


def relative_rates(family: str, chances: Chances, tokens: int, answers: int = 1) -> list[float]:
    """Return the tokens/s of the last of some answers, relative to the best fixed depth, with measured costs."""
    ratios = []
    for i in range(SETTINGS):
        machine = sample_machine(family, Random(f"{family} {i}"))
        _, best = best_fixed(machine, chances)
        rates = []
        for seed in range(RUNS):
            policy = new_policy(measured_costs(machine))
            for answer in range(answers):
                policy = next_policy(policy)
                outcome = simulate(policy, machine, steady_text(chances), tokens=tokens, seed=seed + 10 * answer)
            rates.append(outcome.rate)
        ratios.append(sum(rates) / RUNS / best)
    return ratios


@pytest.mark.parametrize("family", FAMILIES)
def test_first_answer_is_close_to_the_best_fixed_depth(family: str) -> None:
    for chances in (GOOD, MIXED):
        ratios = relative_rates(family, chances, 256)
        assert sum(ratios) / len(ratios) >= 0.95


@pytest.mark.parametrize("family", FAMILIES)
def test_first_answer_loses_at_most_three_percent_if_no_draft_is_accepted(family: str) -> None:
    assert min(relative_rates(family, NEVER, 256)) >= 0.97


@pytest.mark.parametrize("family", FAMILIES)
def test_later_short_answers_are_close_to_the_best_fixed_depth(family: str) -> None:
    for chances, least in ((NEVER, 0.98), (GOOD, 0.94), (MIXED, 0.94)):
        ratios = relative_rates(family, chances, 100, answers=3)
        assert sum(ratios) / len(ratios) >= least


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_depth_is_close_to_the_best_fixed_depth_without_measured_costs(family: str) -> None:
    ratios = []
    for i in range(SETTINGS):
        machine, chances = draw_setting(family, i)
        _, best = best_fixed(machine, chances)
        runs = [simulate(new_policy(), machine, steady_text(chances), rounds=300, seed=n) for n in range(RUNS)]
        ratios.append(sum(run.rate for run in runs) / RUNS / best)
    assert sum(ratios) / SETTINGS >= 0.95


@pytest.mark.parametrize("family", FAMILIES)
def test_useless_head_costs_at_most_two_percent_of_a_long_text_and_is_tried_again(family: str) -> None:
    machine, _ = draw_setting(family, 0)
    auto = simulate(new_policy(measured_costs(machine)), machine, steady_text(NEVER), rounds=3000)
    assert auto.rate * machine.seconds(0, 0) >= 0.985
    if best_fixed(machine, GOOD)[0] > 0:  # else no head could gain anything
        assert all(any(auto.depths[n : n + 300]) for n in range(0, 3000, 300))


def test_first_depth_of_a_request_depends_on_the_acceptance_in_the_last_requests() -> None:
    machine, _ = draw_setting("weight-bound", 0)
    for seed in range(SETTINGS):
        policy = new_policy(measured_costs(machine))
        simulate(policy, machine, steady_text(GOOD), rounds=100, seed=seed)
        assert next_policy(policy).choose(8, 0) > 1
        simulate(policy, machine, steady_text(NEVER), rounds=400, seed=seed)
        again = next_policy(policy)
        assert again.n_to_verify(UNSURE[: again.choose(8, 0)]) == 0


def rounds_to_return(family: str) -> float:
    """Return the mean number of rounds after which drafting resumes when a bad passage has ended.

    Drafts are mostly accepted in the text before and after this passage, and never in it.
    """
    late = []
    for i in range(4 * SETTINGS):
        machine, _ = draw_setting(family, i)

        def text(round: int, _luck: Random) -> tuple[Chances, Sequence[float]]:
            return GOOD if not 150 <= round < 200 else NEVER, UNSURE

        depths = simulate(new_policy(measured_costs(machine)), machine, text, rounds=400, seed=i).depths[200:]
        late.append(next((n for n in range(len(depths)) if min(depths[n : n + 5]) > 0), len(depths)))
    return sum(late) / len(late)


def test_drafting_resumes_soon_after_a_bad_passage_if_it_saved_time_before() -> None:
    assert rounds_to_return("weight-bound") <= 35
    assert rounds_to_return("experts") <= 45


@pytest.mark.parametrize("family", ["weight-bound", "GPU"])
def test_depth_follows_a_change_of_the_text_in_about_fifty_rounds(family: str) -> None:
    turn = 120
    to_good, to_bad = [], []
    for i in range(SETTINGS):
        machine, _ = draw_setting(family, i)
        text = text_that_changes(GOOD, NEVER, turn)
        depths = simulate(new_policy(measured_costs(machine)), machine, text, rounds=turn + 100, seed=i).depths[turn:]
        to_bad.append(depths.index(0))
        text = text_that_changes(NEVER, GOOD, turn)
        depths = simulate(new_policy(measured_costs(machine)), machine, text, rounds=turn + 200, seed=i).depths[turn:]
        to_good.append(next(n for n in range(len(depths)) if min(depths[n : n + 5]) > 0))
    assert sum(to_bad) / SETTINGS <= 50
    assert sum(to_good) / SETTINGS <= 60


def test_head_is_probed_without_verification_where_plain_decoding_is_best() -> None:
    steep = Machine(tuple(0.0013 * n for n in range(9)), tuple(0.01 * cost for cost in (1, 2, 2.4, *[2.6] * 6)))
    policy = new_policy(measured_costs(steep))
    luck, made = Random(0), []
    for _ in range(300):
        drafted = policy.choose(MOST, 0)
        verified = policy.n_to_verify(UNSURE[:drafted])
        policy.observe(drafted, verified, 0, steep.timing(steep.draft[drafted], luck), steep.verify[verified], ())
        made.append((drafted, verified))
    late = made[100:]
    assert set(late) == {(0, 0), (1, 0)}
    assert 2 <= late.count((1, 0)) <= 20
    assert max(simulate(policy, steep, steady_text(GOOD), rounds=100).depths) > 1


def test_first_round_makes_drafts_if_costs_were_measured() -> None:
    flat = Machine(tuple(0.0005 * n for n in range(9)), tuple(0.01 * (1 + 0.1 * n) for n in range(9)))
    assert new_policy(measured_costs(flat)).choose(7, 0) > 1
    assert new_policy().choose(7, 0) == 0


def test_wrong_first_costs_are_corrected_within_one_answer() -> None:
    rows = (1, 1.09, 1.18, 1.27, 1.45, 1.6, 1.75, 1.9, 2.1)  # measured on an AMD EPYC with Q4_0 weights
    machine = Machine(
        (0.0, *(0.0125 * (0.016 + 0.031 * n) for n in range(1, 9))), tuple(0.0125 * cost for cost in rows)
    )
    _, best = best_fixed(machine, MIXED)
    for wrong in ({3: 1.15, 7: 0.8}, {0: 3.0}, {1: 2.0, 2: 3.0, 3: 4.0}):
        later = []
        for seed in range(10):
            costs = RoundCosts()
            costs.begin({(1, d): (machine.draft[d], wrong.get(d, 1) * machine.verify[d]) for d in (0, 1, 2, 3, 5, 7)})
            policy = new_policy(costs)
            for _ in range(3):
                policy = next_policy(policy)
                outcome = simulate(policy, machine, steady_text(MIXED), tokens=256, seed=seed)
            later.append(outcome.rate / best)
        assert sum(later) / len(later) >= 0.93


def test_depth_changes_in_few_rounds() -> None:
    for family in FAMILIES:
        machine, chances = draw_setting(family, 1)
        depths = simulate(new_policy(measured_costs(machine)), machine, steady_text(chances), rounds=300).depths
        assert sum(a != b for a, b in pairwise(depths)) < 125


def recorded_drafts() -> list[dict[str, Any]]:
    """Read recorded drafts of the shipped model; see reference/make_drafts.py."""
    path = Path(__file__).parent.parent / "reference" / "drafts.json"
    texts: list[dict[str, Any]] = json.loads(path.read_text())["texts"]
    return texts


def test_auto_depth_is_close_to_the_best_fixed_depth_on_recorded_drafts() -> None:
    ratios = []
    for family in FAMILIES:
        machine = without_noise(draw_setting(family, 2)[0])
        for text in recorded_drafts():
            sure = [[percent / 100 for percent in row] for row in text["percent"]]
            best = max(replay(FixedDepth(n), machine, text["right"], None) for n in range(MOST + 1))
            ratios.append(replay(new_policy(measured_costs(machine)), machine, text["right"], sure) / best)
    assert sum(ratios) / len(ratios) >= 0.94
