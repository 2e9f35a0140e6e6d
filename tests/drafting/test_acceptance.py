"""Tests of acceptance estimates by the position of a draft."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.depth import Acceptance


def acceptance_after(first: list[float], rounds: int, seed: int = 0, into: Acceptance | None = None) -> Acceptance:
    """Return an Acceptance that has learnt from simulated rounds. first: the true rate of each position in a chain."""
    luck = Random(seed)
    acceptance = into or Acceptance(Acceptance())
    for _ in range(rounds):
        hits = [luck.random() < rate for rate in first]
        n_correct = [*hits, False].index(False)
        acceptance.observe(len(first), n_correct, 1 + n_correct)
    return acceptance


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40), st.integers(0, 8))
def test_acceptance_rates_are_probabilities(seen: list[tuple[int, int]], n: int) -> None:
    prior = Acceptance()
    acceptance = Acceptance(prior)
    for drafted, accepted in seen:
        acceptance.observe(drafted, min(drafted, accepted), 1)
    assert all(0 < rate < 1 for one in (prior, acceptance) for rate in one.rates(n))


def test_acceptance_without_drafts_returns_to_the_prior() -> None:
    prior = acceptance_after([0.9], 200, into=Acceptance())
    acceptance = Acceptance(prior)
    for _ in range(5):
        acceptance.observe(1, 0, 1)
    assert acceptance.rates(1)[0] < 0.6
    acceptance.observe(0, 0, 10**6)
    assert acceptance.rates(3) == pytest.approx(prior.rates(3), abs=0.05)


@pytest.mark.parametrize("truth", [[0.9, 0.8, 0.6], [0.5, 0.9], [0.2], [0.0, 0.0]])
def test_acceptance_rates_approach_the_true_rate_of_each_position(truth: list[float]) -> None:
    found = [acceptance_after(truth, 100, seed).rates(len(truth)) for seed in range(50)]
    for i, true in enumerate(truth):
        assert sum(rates[i] for rates in found) / len(found) == pytest.approx(true, abs=0.15)


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.9), (0.9, 0.0)])
def test_acceptance_follows_a_change_of_the_text_within_thirty_rounds(before: float, after: float) -> None:
    for seed in range(20):
        acceptance = acceptance_after([after], 30, seed, into=acceptance_after([before], 200, seed))
        assert abs(acceptance.rates(1)[0] - after) < abs(acceptance.rates(1)[0] - before)


def test_acceptance_drop_at_one_position_lowers_the_rate_of_the_next_position() -> None:
    good = acceptance_after([0.9, 0.8], 100)
    for _ in range(40):
        good.observe(2, 0, 1)  # the target says nothing about second drafts
    first, second = good.rates(2)
    assert first < 0.35
    assert second < 0.65  # it was 0.8 before the drop


def test_acceptance_recovers_sooner_from_a_bad_passage_if_it_was_high_before() -> None:
    never, usually = acceptance_after([0.0], 200), acceptance_after([0.9], 200)
    for acceptance in (never, usually):
        for _ in range(15):
            acceptance.observe(1, 0, 1)
        for _ in range(3):
            acceptance.observe(1, 1, 2)
    assert usually.rates(1)[0] > never.rates(1)[0] + 0.2


def test_acceptance_of_an_untried_position_is_slightly_below_that_of_the_one_before() -> None:
    rates = acceptance_after([0.8], 100, into=Acceptance()).rates(4)
    assert all(0.9 * a < b < a for a, b in pairwise(rates))


def test_acceptance_of_a_new_sequence_starts_from_the_prior_and_leaves_it_soon() -> None:
    prior = Acceptance()
    acceptance_after([0.0, 0.0], 200, into=Acceptance(prior))
    assert Acceptance(prior).rates(1)[0] < 0.1
    assert acceptance_after([1.0], 15, into=Acceptance(prior)).rates(1)[0] > 0.7
    assert Acceptance(prior).rates(1)[0] < 0.4


def test_acceptance_is_not_biased_by_unverified_unlikely_drafts() -> None:
    found = []
    for seed in range(30):
        luck = Random(seed)
        acceptance = Acceptance(Acceptance())
        for _ in range(100):
            # second drafts are either sure or hopeless, and only the sure ones are verified
            second = luck.choice([0.95, 0.05])
            if second > 0.5:
                n_correct = 1 + (luck.random() < second)
                acceptance.observe(2, n_correct, 1 + n_correct)
            else:
                acceptance.observe(1, 1, 2, unjudged=[second])
        found.append(acceptance.rates(2)[1])
    assert sum(found) / len(found) == pytest.approx(0.5, abs=0.15)


def test_draft_after_rounds_without_drafts_stands_for_all_of_these_in_the_prior() -> None:
    often, seldom = Acceptance(), Acceptance()
    for prior, n_plain in ((often, 0), (seldom, 15)):
        acceptance_after([0.9], 50, into=Acceptance(prior))
        acceptance = Acceptance(prior)
        for _ in range(10):
            acceptance.observe(0, 0, n_plain)
            acceptance.observe(1, 0, 1)
    assert seldom.rates(1)[0] < 0.5 * often.rates(1)[0]
