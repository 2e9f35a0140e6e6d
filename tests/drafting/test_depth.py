"""Claims about the depths that are chosen, on simulated machines and on recorded drafts: no model takes part."""

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
    babbling,
    best_fixed,
    falling,
    quiet,
    replay,
    sample_machine,
    simulate,
    steady,
    telling,
    turning,
)
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import AutoDepth, Costs, FixedDepth

NEVER = [0.0] * MOST
GOOD = falling(0.9, 0.97)

SETTINGS = 12  # machines and texts of each family
RUNS = 4  # of each, with other luck


def draw_setting(family: str, i: int) -> tuple[Machine, Chances]:
    """A machine of the family, and any text."""
    luck = Random(f"{family} {i}")
    return sample_machine(family, luck), falling(luck.uniform(0, 0.97), luck.uniform(0.85, 1))


class Unsure(AutoDepth):
    """Verifies all that it drafts."""

    def keep(self, confidences: Sequence[float]) -> int:
        return len(confidences)


rounds = st.lists(
    st.tuples(
        st.integers(0, 12),  # room
        st.integers(0, 12),  # accepted, at most
        st.floats(1e-6, 10),  # seconds
        st.floats(1e-6, 10),
        st.lists(st.floats(0, 1), min_size=12, max_size=12),
    ),
    max_size=40,
)


@given(rounds, st.integers(0, 12), st.booleans())
def test_any_past_leads_to_a_depth_that_there_is_room_for_and_always_the_same(
    past: list[tuple[int, int, float, float, list[float]]], most: int, sure: bool
) -> None:
    histories = []
    for _ in range(2):
        policy = AutoDepth(Costs(), most)
        kept = []
        for room, hits, draft_seconds, verify_seconds, confidences in past:
            drafted = policy.choose(room, 0)
            assert 0 <= drafted <= min(room, most)
            known = confidences[:drafted] if sure else []
            verified = policy.keep(known) if sure else drafted
            assert 0 <= verified <= drafted
            policy.observe(drafted, verified, min(hits, verified), draft_seconds, verify_seconds, known)
            kept.append((drafted, verified, policy.keep(confidences)))
        histories.append(kept)
    assert histories[0] == histories[1]


def test_confidence_may_be_asked_about_before_anything_was_timed() -> None:
    assert AutoDepth(Costs()).keep([]) == 0
    assert AutoDepth(Costs()).keep([0.1, 0.9]) == 2


def test_plain_decoding_that_was_spoilt_when_it_was_timed_is_timed_again() -> None:
    machine = draw_setting("small", 0)[0]
    policy = AutoDepth(Costs())
    for _ in range(PLAIN + WARM):
        drafted = policy.choose(8, 0)
        policy.observe(drafted, 0, 0, 0.2 * machine.verify[0] * drafted, 20 * machine.verify[0], ())
    depths = simulate(policy, machine, steady(NEVER), rounds=200).depths
    assert sum(depths[100:]) <= 15  # peeks; were it believed, hundreds


def test_nothing_is_drafted_before_plain_decoding_was_timed_a_few_times() -> None:
    policy = AutoDepth(Costs())
    plain = 0
    while policy.choose(8, plain) == 0:
        policy.observe(0, 0, 0, 0.0, 0.01, ())
        plain += 1
    assert PLAIN <= plain <= PLAIN + WARM


@given(st.integers(0, 10), st.integers(0, 10))
def test_a_fixed_depth_is_left_only_where_there_is_no_room(n: int, room: int) -> None:
    policy = FixedDepth(n)
    drafted = policy.choose(room, 0)
    assert drafted == min(n, room)
    assert policy.keep([0.0] * drafted) == drafted
    policy.observe(drafted, drafted, 0, 0.1, 0.1, [0.0] * drafted)
    assert policy.choose(room, 0) == drafted


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_comes_near_the_best_fixed_depth_on_any_machine(family: str) -> None:
    ratios = []
    for i in range(SETTINGS):
        machine, chances = draw_setting(family, i)
        _, best = best_fixed(machine, chances)
        runs = [simulate(AutoDepth(Costs(), MOST), machine, steady(chances), rounds=300, seed=n) for n in range(RUNS)]
        ratios.append(sum(run.rate for run in runs) / RUNS / best)
    assert sum(ratios) / SETTINGS >= 0.968
    assert min(ratios) >= 0.93


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_costs_at_most_three_percent_where_no_draft_is_ever_accepted(family: str) -> None:
    for i in range(SETTINGS):
        machine, _ = draw_setting(family, i)
        auto = simulate(AutoDepth(Costs(), MOST), machine, steady(NEVER), tokens=256, seed=i)
        assert auto.rate * machine.seconds(0, 0) >= 0.97


@pytest.mark.parametrize("family", FAMILIES)
def test_short_requests_start_from_what_the_ones_before_them_found(family: str) -> None:
    for chances, least in ((NEVER, 0.97), (GOOD, 0.95)):
        ratios = []
        for i in range(SETTINGS):
            machine, _ = draw_setting(family, i)
            _, best = best_fixed(machine, chances)
            costs, policy = Costs(), None
            for request in range(3):
                policy = AutoDepth(costs, MOST, after=policy)
                outcome = simulate(policy, machine, steady(chances), tokens=100, seed=request)
            ratios.append(outcome.rate / best)
        assert sum(ratios) / SETTINGS >= least


def test_a_request_begins_as_the_last_one_ended() -> None:
    machine, _ = draw_setting("weight-bound", 0)
    verified = 0
    for seed in range(SETTINGS):
        costs = Costs()
        good = AutoDepth(costs)
        simulate(good, machine, steady(GOOD), rounds=100, seed=seed)
        assert AutoDepth(costs, after=good).choose(8, 0) > 0
        bad = AutoDepth(costs, after=good)
        simulate(bad, machine, steady(NEVER), rounds=200, seed=seed)
        again = AutoDepth(costs, after=bad)
        verified += again.keep(UNSURE[: again.choose(8, 0)])
    assert verified <= 1  # a depth timed long ago, perhaps; others are peeks


def rounds_to_return(family: str) -> float:
    """How long a text that was good, then bad for a while, is good again before it is drafted, on the average."""
    late = []
    for i in range(4 * SETTINGS):
        machine, _ = draw_setting(family, i)

        def text(round: int, _luck: Random) -> tuple[Chances, Sequence[float]]:
            return GOOD if not 150 <= round < 200 else NEVER, UNSURE

        depths = simulate(AutoDepth(Costs(), MOST), machine, text, rounds=400, seed=i).depths[200:]
        late.append(next((n for n in range(len(depths)) if min(depths[n : n + 5]) > 0), len(depths)))
    return sum(late) / len(late)


def test_what_drafting_earned_pays_for_looking_soon_whether_it_is_worth_it_again() -> None:
    assert rounds_to_return("weight-bound") <= 7
    assert rounds_to_return("experts") <= 15


def test_a_peek_that_was_right_is_followed_by_another() -> None:
    assert rounds_to_return("small") <= 82  # 71; where each waits for its turn, 93


def test_a_short_request_teaches_the_next_one() -> None:
    costs = Costs()
    policy = AutoDepth(costs)
    for _ in range(8):
        n = policy.choose(100, 0)
        policy.observe(n, n, 0, 1e-6 * n, 1e-5, [0.9] * n)
    before = AutoDepth(costs).rates(1)
    assert AutoDepth(costs, after=policy).rates(1) < before


def test_probes_go_on_at_a_bounded_cost() -> None:
    for family in FAMILIES:
        machine, _ = draw_setting(family, 0)
        auto = simulate(AutoDepth(Costs(), MOST), machine, steady(NEVER), rounds=3000)
        assert auto.rate * machine.seconds(0, 0) >= 0.98


@pytest.mark.parametrize("family", ["weight-bound", "GPU"])
def test_a_text_that_turns_bad_is_left_and_one_that_turns_good_is_found_in_some_fifty_rounds(family: str) -> None:
    turn = 120
    to_good, to_bad = [], []
    for i in range(SETTINGS):
        machine, _ = draw_setting(family, i)
        text = turning(GOOD, NEVER, turn)
        depths = simulate(AutoDepth(Costs(), MOST), machine, text, rounds=turn + 100, seed=i).depths[turn:]
        to_bad.append(depths.index(0))
        text = turning(NEVER, GOOD, turn)
        depths = simulate(AutoDepth(Costs(), MOST), machine, text, rounds=turn + 200, seed=i).depths[turn:]
        to_good.append(next(n for n in range(len(depths)) if min(depths[n : n + 5]) > 0))
    assert sum(to_bad) / SETTINGS <= 50
    assert sum(to_good) / SETTINGS <= 60


def test_where_plain_decoding_is_best_drafts_are_looked_at_and_not_verified() -> None:
    for family in ("small", "experts"):  # elsewhere a row costs next to nothing
        machine, _ = draw_setting(family, 0)
        luck = Random(0)
        policy = AutoDepth(Costs(), MOST)
        rounds = []
        for _ in range(1500):
            drafted = policy.choose(MOST, 0)
            verified = policy.keep(UNSURE[:drafted])
            seconds = (machine.timing(machine.draft[drafted], luck), machine.timing(machine.verify[verified], luck))
            policy.observe(drafted, verified, 0, *seconds, UNSURE[:drafted])
            rounds.append((drafted, verified))
        late = rounds[500:]
        assert sum(1 for drafted, verified in late if drafted and not verified) >= 5
        took = sum(machine.draft[drafted] + machine.verify[verified] for drafted, verified in late)
        assert took <= 1.015 * len(late) * machine.verify[0]


def test_a_text_that_turns_bad_is_noticed_between_two_looks() -> None:
    one = 0.0003  # so that some forty rounds go by between two looks
    fast = Machine(tuple(0.05 * one * n for n in range(MOST + 1)), tuple(one * (1 + 0.1 * n) for n in range(MOST + 1)))
    turn, drafted = 200, 0
    for seed in range(5):
        depths = simulate(AutoDepth(Costs()), fast, turning(GOOD, NEVER, turn), rounds=turn + 20, seed=seed).depths
        assert min(depths[turn - 10 : turn]) > 1
        drafted += sum(depths[turn:])
    assert drafted <= 380  # in the first 20 rounds of each; waiting for the next look, 480


def test_costs_once_known_are_not_learnt_again() -> None:
    machine = quiet(draw_setting("weight-bound", 0)[0])
    costs = Costs()
    tried = []
    for _ in range(2):
        outcome = simulate(AutoDepth(costs, MOST), machine, steady(GOOD), rounds=100)
        tried.append(len(set(outcome.depths)))
    assert tried[1] < tried[0]


def changes(family: str, change: float) -> int:
    """How often the depth changes in 300 rounds, where that takes so many rounds of plain decoding."""
    machine, chances = draw_setting(family, 1)
    machine = replace(machine, change=change * machine.verify[0])
    depths = simulate(AutoDepth(Costs(), MOST), machine, steady(chances), rounds=300).depths
    return sum(a != b for a, b in pairwise(depths))


def test_costs_measured_first_and_wrong_do_not_mislead_for_longer_than_an_answer() -> None:
    rows = (1, 1.09, 1.18, 1.27, 1.45, 1.6, 1.75, 1.9, 2.1)  # few-row kernels of an AMD EPYC, Q4_0
    machine = Machine(
        (0.0, *(0.0125 * (0.016 + 0.031 * n) for n in range(1, 9))), tuple(0.0125 * cost for cost in rows)
    )
    chances = [0.85, 0.75, 0.65, *[0.6] * 5]
    _, best = best_fixed(machine, chances)
    later = []
    for seed in range(10):
        costs, policy = Costs(), None
        costs.begin(
            {n: machine.verify[n - 1] * {4: 1.15, 8: 0.8}.get(n, 1) for n in (1, 2, 4, 8)}, {3: machine.draft[3]}
        )
        for _ in range(3):
            policy = AutoDepth(costs, after=policy)
            outcome = simulate(policy, machine, steady(chances), tokens=256, seed=seed)
        later.append(outcome.rate / best)
    assert sum(later) / len(later) >= 0.95


def test_depths_do_not_flap_and_less_so_where_a_change_costs_time() -> None:
    assert all(changes(family, 0.0) < 60 for family in FAMILIES)
    assert all(changes(family, 0.3) < 50 for family in FAMILIES)


def with_and_without_keeping(family: str, make: Any) -> list[float]:
    """Tokens a second of a policy that cuts unlikely drafts, against one that verifies all."""
    ratios = []
    for i in range(SETTINGS):
        machine, _ = draw_setting(family, i)
        text = make(falling(Random(i).uniform(0.4, 0.9), 0.95))
        cuts, all_of_them = (
            simulate(policy(Costs(), MOST), machine, text, rounds=300, seed=i) for policy in (AutoDepth, Unsure)
        )
        ratios.append(cuts.rate / all_of_them.rate)
    return ratios


@pytest.mark.parametrize("family", ["weight-bound", "experts"])
def test_a_head_that_knows_when_it_is_wrong_saves_verifying(family: str) -> None:
    ratios = with_and_without_keeping(family, lambda chances: telling(chances, sharpness=1, bend=0.7))
    assert sum(ratios) / SETTINGS > 1.005


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_does_not_know_costs_less_than_two_percent(family: str) -> None:
    ratios = with_and_without_keeping(family, babbling)
    assert sum(ratios) / SETTINGS > 0.98


def recorded() -> list[dict[str, Any]]:
    """Drafts of the shipped model; see reference/make_drafts.py."""
    path = Path(__file__).parent.parent / "reference" / "drafts.json"
    texts: list[dict[str, Any]] = json.loads(path.read_text())["texts"]
    return texts


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_comes_near_the_best_fixed_depth_on_recorded_drafts(family: str) -> None:
    machine = quiet(draw_setting(family, 2)[0])
    ratios = []
    for text in recorded():
        sure = [[percent / 100 for percent in row] for row in text["percent"]]
        best = max(replay(FixedDepth(n), machine, text["right"], None) for n in range(MOST + 1))
        ratios.append(replay(AutoDepth(Costs(), MOST), machine, text["right"], sure) / best)
    assert sum(ratios) / len(ratios) >= 0.95
