"""Tests of draft depths: the policies' choices on simulated machines and recorded drafts, without a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
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
    Text,
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
    text_with_informative_head,
    text_with_random_confidence,
    without_noise,
)
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import FixedDepth, RoundCosts, RoundTime, SequenceDepth
from pymtp.drafting.warm_up import DEPTHS

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
            policy.observe(drafted, verified, min(hits, verified), draft_seconds, verify_seconds)
            kept.append((drafted, verified))
        histories.append(kept)
    assert histories[0] == histories[1]


@given(st.integers(0, 10), st.integers(0, 10))
def test_fixed_depth_is_lower_only_if_the_allowed_maximum_is_lower(n: int, room: int) -> None:
    policy = FixedDepth(n)
    drafted = policy.choose(room, 0)
    assert drafted == min(n, room)
    assert policy.n_to_verify([0.0] * drafted) == drafted
    policy.observe(drafted, drafted, 0, 0.1, 0.1)
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
    for chances, least in ((NEVER, 0.97), (GOOD, 0.95), (MIXED, 0.95)):
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
    assert auto.rate * machine.seconds(0, 0) >= 0.98
    if best_fixed(machine, GOOD)[0] > 0:  # else no head could gain anything
        assert all(any(auto.depths[n : n + 300]) for n in range(0, 3000, 300))


def test_first_depth_of_a_request_depends_on_the_acceptance_in_the_last_requests() -> None:
    machine, _ = draw_setting("weight-bound", 0)
    verified = 0
    for seed in range(SETTINGS):
        policy = new_policy(measured_costs(machine))
        simulate(policy, machine, steady_text(GOOD), rounds=100, seed=seed)
        assert next_policy(policy).choose(8, 0) > 1
        simulate(policy, machine, steady_text(NEVER), rounds=400, seed=seed)
        again = next_policy(policy)
        verified += again.n_to_verify(UNSURE[: again.choose(8, 0)])
    assert verified <= 1  # one depth that was timed long ago may be tried again; all other drafts are peeks


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
    assert rounds_to_return("weight-bound") <= 8
    assert rounds_to_return("experts") <= 15
    assert rounds_to_return("small") <= 93


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
        policy.observe(drafted, verified, 0, steep.timing(steep.draft[drafted], luck), steep.verify[verified])
        made.append((drafted, verified))
    late = made[100:]
    assert set(late) == {(0, 0), (1, 0)}
    assert 2 <= late.count((1, 0)) <= 24
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
            costs.begin({(1, d): RoundTime(machine.draft[d], wrong.get(d, 1) * machine.verify[d]) for d in DEPTHS})
            policy = new_policy(costs)
            for _ in range(3):
                policy = next_policy(policy)
                outcome = simulate(policy, machine, steady_text(MIXED), tokens=256, seed=seed)
            later.append(outcome.rate / best)
        assert sum(later) / len(later) >= 0.95


def depth_changes(family: str, change: float) -> int:
    """Return how often the depth changes in 300 rounds, if a change costs `change` times a round of plain decoding."""
    machine, chances = draw_setting(family, 1)
    machine = replace(machine, change=change * machine.verify[0])
    depths = simulate(new_policy(measured_costs(machine)), machine, steady_text(chances), rounds=300).depths
    return sum(a != b for a, b in pairwise(depths))


def test_depth_changes_in_few_rounds_and_in_fewer_if_a_change_costs_time() -> None:
    free, dear = ([depth_changes(family, change) for family in FAMILIES] for change in (0.0, 0.3))
    assert max(free) < 150  # two depths of "steps" are equally fast; with the other families it is below 40
    assert sorted(free)[-2] < 60
    assert max(dear) < 65
    assert sum(dear) < 0.8 * sum(free)


class Unsure:
    """A policy that is not told what the head thinks of its drafts."""

    def __init__(self, policy: SequenceDepth) -> None:
        self._policy = policy
        self.choose, self.observe = policy.choose, policy.observe

    def n_to_verify(self, confidences: Sequence[float]) -> int:
        return self._policy.n_to_verify([0.5] * len(confidences))


def gain_of_confidence(family: str, make: Callable[[Chances], Text]) -> list[float]:
    """Return the tokens/s of a policy that knows the head's confidence, relative to one that does not."""
    ratios = []
    for i in range(SETTINGS):
        machine, _ = draw_setting(family, i)
        text = make(falling_rates(Random(i).uniform(0.4, 0.9), 0.95))
        told, untold = (
            simulate(policy, machine, text, rounds=300, seed=i).rate
            for policy in (new_policy(measured_costs(machine)), Unsure(new_policy(measured_costs(machine))))
        )
        ratios.append(told / untold)
    return ratios


@pytest.mark.parametrize("family", ["weight-bound", "experts"])
def test_confidence_of_an_informative_head_saves_verification(family: str) -> None:
    ratios = gain_of_confidence(family, lambda chances: text_with_informative_head(chances, sharpness=1, bend=0.7))
    assert sum(ratios) / SETTINGS > 1.005


@pytest.mark.parametrize("family", FAMILIES)
def test_confidence_of_an_uninformative_head_costs_less_than_two_percent(family: str) -> None:
    ratios = gain_of_confidence(family, text_with_random_confidence)
    assert sum(ratios) / SETTINGS > 0.98


def test_times_that_a_busy_machine_disturbed_lead_to_no_drafts_where_none_is_accepted() -> None:
    machine = draw_setting("small", 0)[0]
    policy = new_policy()
    for _ in range(8):
        drafted = policy.choose(8, 0)
        policy.observe(drafted, 0, 0, 0.2 * machine.verify[0] * drafted, 20 * machine.verify[0])
    depths = simulate(policy, machine, steady_text(NEVER), rounds=200).depths
    assert sum(depths[100:]) <= 15  # only peeks; it would be hundreds if the outliers counted


def test_drafts_become_few_within_twenty_rounds_after_a_text_turned_bad() -> None:
    one = 0.0003
    fast = Machine(tuple(0.05 * one * n for n in range(MOST + 1)), tuple(one * (1 + 0.1 * n) for n in range(MOST + 1)))
    turn, drafted = 200, 0
    for seed in range(5):
        policy = new_policy(measured_costs(fast))
        depths = simulate(policy, fast, text_that_changes(GOOD, NEVER, turn), rounds=turn + 20, seed=seed).depths
        assert min(depths[turn - 10 : turn]) > 1
        drafted += sum(depths[turn:])
    assert drafted <= 380  # of 800


def test_acceptance_from_a_short_request_is_used_in_the_next_request() -> None:
    policy = new_policy()
    for _ in range(8):
        n = policy.choose(100, 0)
        policy.observe(n, n, 0, 1e-6 * n, 1e-5)
    assert next_policy(policy).acceptance.rates(1) < new_policy().acceptance.rates(1)


def recorded_drafts() -> list[dict[str, Any]]:
    """Read recorded drafts of a small model; see reference/make_drafts.py."""
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
        ratios.append(replay(new_policy(measured_costs(machine)), machine, text["right"], sure) / best)
    assert sum(ratios) / len(ratios) >= 0.95
