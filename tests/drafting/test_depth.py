"""Tests of draft depths: the policies' choices on simulated machines and recorded drafts, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from helpers.estimates import PLAIN, WARM
from helpers.simulate import (
    FAMILIES,
    MOST,
    UNSURE,
    Chances,
    Machine,
    best_fixed,
    falling_rates,
    replay,
    sample_machine,
    simulate,
    steady_text,
    text_that_changes,
    text_with_informative_head,
    text_with_random_confidence,
    without_noise,
)
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import AutoDepth, FixedDepth, RoundCosts

NEVER = [0.0] * MOST
GOOD = falling_rates(0.9, 0.97)

SETTINGS = 12  # number of random machines and texts of each family
RUNS = 4  # number of simulations of each machine and text, with different random numbers


def draw_setting(family: str, i: int) -> tuple[Machine, Chances]:
    """Return a random machine of the family, and the acceptance of a random text."""
    luck = Random(f"{family} {i}")
    return sample_machine(family, luck), falling_rates(luck.uniform(0, 0.97), luck.uniform(0.85, 1))


class Unsure(AutoDepth):
    """A policy that verifies all its drafts."""

    def n_to_verify(self, confidences: Sequence[float]) -> int:
        return len(confidences)


rounds = st.lists(
    st.tuples(
        st.integers(0, 12),  # allowed maximum of drafts
        st.integers(0, 12),  # maximum of accepted drafts
        st.floats(1e-6, 10),  # seconds of the drafts
        st.floats(1e-6, 10),  # seconds of the verification
        st.lists(st.floats(0, 1), min_size=12, max_size=12),
    ),
    max_size=40,
)


@given(rounds, st.integers(0, 12), st.booleans())
def test_depth_is_deterministic_and_at_most_the_allowed_maximum(
    past: list[tuple[int, int, float, float, list[float]]], most: int, sure: bool
) -> None:
    histories = []
    for _ in range(2):
        policy = AutoDepth(RoundCosts(), most)
        kept = []
        for room, hits, draft_seconds, verify_seconds, confidences in past:
            drafted = policy.choose(room, 0)
            assert 0 <= drafted <= min(room, most)
            known = confidences[:drafted] if sure else []
            verified = policy.n_to_verify(known) if sure else drafted
            assert 0 <= verified <= drafted
            policy.observe(drafted, verified, min(hits, verified), draft_seconds, verify_seconds, known)
            kept.append((drafted, verified, policy.n_to_verify(confidences)))
        histories.append(kept)
    assert histories[0] == histories[1]


def test_n_to_verify_works_before_the_first_round() -> None:
    assert AutoDepth(RoundCosts()).n_to_verify([]) == 0
    assert AutoDepth(RoundCosts()).n_to_verify([0.1, 0.9]) == 2


def test_depth_measures_plain_decoding_again_after_an_outlier() -> None:
    machine = draw_setting("small", 0)[0]
    policy = AutoDepth(RoundCosts())
    for _ in range(PLAIN + WARM):
        drafted = policy.choose(8, 0)
        policy.observe(drafted, 0, 0, 0.2 * machine.verify[0] * drafted, 20 * machine.verify[0], ())
    depths = simulate(policy, machine, steady_text(NEVER), rounds=200).depths
    assert sum(depths[100:]) <= 15  # only probes; it would be hundreds if the outlier counted


def test_depth_is_zero_until_plain_decoding_was_timed_a_few_times() -> None:
    policy = AutoDepth(RoundCosts())
    plain = 0
    while policy.choose(8, plain) == 0:
        policy.observe(0, 0, 0, 0.0, 0.01, ())
        plain += 1
    assert PLAIN <= plain <= PLAIN + WARM


@given(st.integers(0, 10), st.integers(0, 10))
def test_fixed_depth_is_lower_only_if_the_allowed_maximum_is_lower(n: int, room: int) -> None:
    policy = FixedDepth(n)
    drafted = policy.choose(room, 0)
    assert drafted == min(n, room)
    assert policy.n_to_verify([0.0] * drafted) == drafted
    policy.observe(drafted, drafted, 0, 0.1, 0.1, [0.0] * drafted)
    assert policy.choose(room, 0) == drafted


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_depth_is_close_to_the_best_fixed_depth_on_any_machine(family: str) -> None:
    ratios = []
    for i in range(SETTINGS):
        machine, chances = draw_setting(family, i)
        _, best = best_fixed(machine, chances)
        runs = [
            simulate(AutoDepth(RoundCosts(), MOST), machine, steady_text(chances), rounds=300, seed=n)
            for n in range(RUNS)
        ]
        ratios.append(sum(run.rate for run in runs) / RUNS / best)
    assert sum(ratios) / SETTINGS >= 0.968
    assert min(ratios) >= 0.93


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_depth_loses_at_most_three_percent_if_no_draft_is_accepted(family: str) -> None:
    for i in range(SETTINGS):
        machine, _ = draw_setting(family, i)
        auto = simulate(AutoDepth(RoundCosts(), MOST), machine, steady_text(NEVER), tokens=256, seed=i)
        assert auto.rate * machine.seconds(0, 0) >= 0.97


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_depth_is_close_to_the_best_fixed_depth_in_the_third_short_request(family: str) -> None:
    for chances, least in ((NEVER, 0.97), (GOOD, 0.95)):
        ratios = []
        for i in range(SETTINGS):
            machine, _ = draw_setting(family, i)
            _, best = best_fixed(machine, chances)
            costs, policy = RoundCosts(), None
            for request in range(3):
                policy = AutoDepth(costs, MOST, after=policy)
                outcome = simulate(policy, machine, steady_text(chances), tokens=100, seed=request)
            ratios.append(outcome.rate / best)
        assert sum(ratios) / SETTINGS >= least


def test_first_depth_of_a_request_depends_on_the_acceptance_in_the_last_request() -> None:
    machine, _ = draw_setting("weight-bound", 0)
    verified = 0
    for seed in range(SETTINGS):
        costs = RoundCosts()
        good = AutoDepth(costs)
        simulate(good, machine, steady_text(GOOD), rounds=100, seed=seed)
        assert AutoDepth(costs, after=good).choose(8, 0) > 0
        bad = AutoDepth(costs, after=good)
        simulate(bad, machine, steady_text(NEVER), rounds=200, seed=seed)
        again = AutoDepth(costs, after=bad)
        verified += again.n_to_verify(UNSURE[: again.choose(8, 0)])
    assert verified <= 1  # one depth that was timed long ago may be tried again; all other drafts are probes


def rounds_to_return(family: str) -> float:
    """Return the mean number of rounds after which drafting resumes when a bad passage has ended.

    Drafts are mostly accepted in the text before and after this passage, and never in it.
    """
    late = []
    for i in range(4 * SETTINGS):
        machine, _ = draw_setting(family, i)

        def text(round: int, _luck: Random) -> tuple[Chances, Sequence[float]]:
            return GOOD if not 150 <= round < 200 else NEVER, UNSURE

        depths = simulate(AutoDepth(RoundCosts(), MOST), machine, text, rounds=400, seed=i).depths[200:]
        late.append(next((n for n in range(len(depths)) if min(depths[n : n + 5]) > 0), len(depths)))
    return sum(late) / len(late)


def test_drafting_resumes_soon_after_a_bad_passage_if_it_saved_time_before() -> None:
    assert rounds_to_return("weight-bound") <= 7
    assert rounds_to_return("experts") <= 15


def test_drafting_resumes_sooner_as_a_correct_probe_is_repeated() -> None:
    assert rounds_to_return("small") <= 82  # it is 71, and would be 93 without repeated probes


def test_acceptance_from_a_short_request_is_used_in_the_next_request() -> None:
    costs = RoundCosts()
    policy = AutoDepth(costs)
    for _ in range(8):
        n = policy.choose(100, 0)
        policy.observe(n, n, 0, 1e-6 * n, 1e-5, [0.9] * n)
    before = AutoDepth(costs).rates(1)
    assert AutoDepth(costs, after=policy).rates(1) < before


def test_probes_cost_at_most_two_percent_of_a_long_text() -> None:
    for family in FAMILIES:
        machine, _ = draw_setting(family, 0)
        auto = simulate(AutoDepth(RoundCosts(), MOST), machine, steady_text(NEVER), rounds=3000)
        assert auto.rate * machine.seconds(0, 0) >= 0.98


@pytest.mark.parametrize("family", ["weight-bound", "GPU"])
def test_depth_follows_a_change_of_the_text_in_about_fifty_rounds(family: str) -> None:
    turn = 120
    to_good, to_bad = [], []
    for i in range(SETTINGS):
        machine, _ = draw_setting(family, i)
        text = text_that_changes(GOOD, NEVER, turn)
        depths = simulate(AutoDepth(RoundCosts(), MOST), machine, text, rounds=turn + 100, seed=i).depths[turn:]
        to_bad.append(depths.index(0))
        text = text_that_changes(NEVER, GOOD, turn)
        depths = simulate(AutoDepth(RoundCosts(), MOST), machine, text, rounds=turn + 200, seed=i).depths[turn:]
        to_good.append(next(n for n in range(len(depths)) if min(depths[n : n + 5]) > 0))
    assert sum(to_bad) / SETTINGS <= 50
    assert sum(to_good) / SETTINGS <= 60


def test_depth_makes_probe_drafts_without_verifying_where_plain_decoding_is_best() -> None:
    for family in ("small", "experts"):  # with other families, a row costs so little that probes are verified
        machine, _ = draw_setting(family, 0)
        luck = Random(0)
        policy = AutoDepth(RoundCosts(), MOST)
        rounds = []
        for _ in range(1500):
            drafted = policy.choose(MOST, 0)
            verified = policy.n_to_verify(UNSURE[:drafted])
            seconds = (machine.timing(machine.draft[drafted], luck), machine.timing(machine.verify[verified], luck))
            policy.observe(drafted, verified, 0, *seconds, UNSURE[:drafted])
            rounds.append((drafted, verified))
        late = rounds[500:]
        assert sum(1 for drafted, verified in late if drafted and not verified) >= 5
        took = sum(machine.draft[drafted] + machine.verify[verified] for drafted, verified in late)
        assert took <= 1.015 * len(late) * machine.verify[0]


def test_depth_notices_a_text_that_turns_bad_between_two_probes() -> None:
    one = 0.0003  # about forty rounds pass between two probes
    fast = Machine(tuple(0.05 * one * n for n in range(MOST + 1)), tuple(one * (1 + 0.1 * n) for n in range(MOST + 1)))
    turn, drafted = 200, 0
    for seed in range(5):
        depths = simulate(
            AutoDepth(RoundCosts()), fast, text_that_changes(GOOD, NEVER, turn), rounds=turn + 20, seed=seed
        ).depths
        assert min(depths[turn - 10 : turn]) > 1
        drafted += sum(depths[turn:])
    assert drafted <= 380  # drafts in the 20 rounds after each change; 480 if it waited for the next probe


def test_next_request_tries_fewer_depths_because_costs_are_known() -> None:
    machine = without_noise(draw_setting("weight-bound", 0)[0])
    costs = RoundCosts()
    tried = []
    for _ in range(2):
        outcome = simulate(AutoDepth(costs, MOST), machine, steady_text(GOOD), rounds=100)
        tried.append(len(set(outcome.depths)))
    assert tried[1] < tried[0]


def depth_changes(family: str, change: float) -> int:
    """Return how often the depth changes in 300 rounds, if a change costs `change` times a round of plain decoding."""
    machine, chances = draw_setting(family, 1)
    machine = replace(machine, change=change * machine.verify[0])
    depths = simulate(AutoDepth(RoundCosts(), MOST), machine, steady_text(chances), rounds=300).depths
    return sum(a != b for a, b in pairwise(depths))


def test_depth_recovers_from_wrong_first_costs_within_one_answer() -> None:
    rows = (1, 1.09, 1.18, 1.27, 1.45, 1.6, 1.75, 1.9, 2.1)  # measured on an AMD EPYC with Q4_0 weights
    machine = Machine(
        (0.0, *(0.0125 * (0.016 + 0.031 * n) for n in range(1, 9))), tuple(0.0125 * cost for cost in rows)
    )
    chances = [0.85, 0.75, 0.65, *[0.6] * 5]
    _, best = best_fixed(machine, chances)
    later = []
    for seed in range(10):
        costs, policy = RoundCosts(), None
        costs.begin(
            {n: machine.verify[n - 1] * {4: 1.15, 8: 0.8}.get(n, 1) for n in (1, 2, 4, 8)}, {3: machine.draft[3]}
        )
        for _ in range(3):
            policy = AutoDepth(costs, after=policy)
            outcome = simulate(policy, machine, steady_text(chances), tokens=256, seed=seed)
        later.append(outcome.rate / best)
    assert sum(later) / len(later) >= 0.95


def test_depth_changes_in_few_rounds_and_in_fewer_if_a_change_costs_time() -> None:
    assert all(depth_changes(family, 0.0) < 60 for family in FAMILIES)
    assert all(depth_changes(family, 0.3) < 50 for family in FAMILIES)


def gain_of_confidence(family: str, make: Any) -> list[float]:
    """Return the tokens/s of a policy that drops unlikely drafts, relative to one that verifies all."""
    ratios = []
    for i in range(SETTINGS):
        machine, _ = draw_setting(family, i)
        text = make(falling_rates(Random(i).uniform(0.4, 0.9), 0.95))
        cuts, all_of_them = (
            simulate(policy(RoundCosts(), MOST), machine, text, rounds=300, seed=i) for policy in (AutoDepth, Unsure)
        )
        ratios.append(cuts.rate / all_of_them.rate)
    return ratios


@pytest.mark.parametrize("family", ["weight-bound", "experts"])
def test_confidence_of_an_informative_head_saves_verification(family: str) -> None:
    ratios = gain_of_confidence(family, lambda chances: text_with_informative_head(chances, sharpness=1, bend=0.7))
    assert sum(ratios) / SETTINGS > 1.005


@pytest.mark.parametrize("family", FAMILIES)
def test_confidence_of_an_uninformative_head_costs_less_than_two_percent(family: str) -> None:
    ratios = gain_of_confidence(family, text_with_random_confidence)
    assert sum(ratios) / SETTINGS > 0.98


def recorded_drafts() -> list[dict[str, Any]]:
    """Read recorded drafts of the shipped model; see reference/make_drafts.py."""
    path = Path(__file__).parent.parent / "reference" / "drafts.json"
    texts: list[dict[str, Any]] = json.loads(path.read_text())["texts"]
    return texts


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_depth_is_close_to_the_best_fixed_depth_on_recorded_drafts(family: str) -> None:
    machine = without_noise(draw_setting(family, 2)[0])
    ratios = []
    for text in recorded_drafts():
        sure = [[percent / 100 for percent in row] for row in text["percent"]]
        best = max(replay(FixedDepth(n), machine, text["right"], None) for n in range(MOST + 1))
        ratios.append(replay(AutoDepth(RoundCosts(), MOST), machine, text["right"], sure) / best)
    assert sum(ratios) / len(ratios) >= 0.95
