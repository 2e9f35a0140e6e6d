"""Tests of acceptance estimates: by position, and by the head's confidence."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random

import pytest
from helpers.estimates import Acceptance, Calibration, window_tokens
from hypothesis import given
from hypothesis import strategies as st

chances = st.lists(st.floats(0, 1), max_size=6)


def brute_force(rates: list[float]) -> float:
    """Return the expected tokens of a round, summed over all outcomes: accepted drafts and the target's token."""
    total = 0.0
    for outcome in product((True, False), repeat=len(rates)):
        chance = 1.0
        for hit, rate in zip(outcome, rates, strict=True):
            chance *= rate if hit else 1 - rate
        total += chance * (1 + [*outcome, False].index(False))
    return total


def acceptance_after(first: list[float], rounds: int, seed: int = 0, into: Acceptance | None = None) -> Acceptance:
    """Return an Acceptance that has learnt from simulated rounds. first: the true rate of each position in a chain."""
    luck = Random(seed)
    acceptance = into or Acceptance()
    for _ in range(rounds):
        hits = [luck.random() < rate for rate in first]
        acceptance.observe(len(first), [*hits, False].index(False))
    return acceptance


@given(chances)
def test_expected_tokens_of_a_round_match_brute_force(rates: list[float]) -> None:
    assert window_tokens(rates)[-1] == pytest.approx(brute_force(rates))
    assert window_tokens(rates)[0] == 1


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40), st.integers(0, 8))
def test_acceptance_rates_are_probabilities_and_each_draft_adds_at_most_one_token(
    seen: list[tuple[int, int]], n: int
) -> None:
    acceptance = Acceptance()
    for drafted, accepted in seen:
        acceptance.observe(drafted, min(drafted, accepted))
    assert all(0 < rate < 1 for rate in acceptance.rates(n))
    tokens = window_tokens(acceptance.rates(n))
    assert tokens == sorted(tokens)
    assert tokens[-1] <= n + 1


def test_acceptance_returns_to_the_first_guess_after_all_counts_faded() -> None:
    """Fade the counts without drafts, as rounds of several sequences do."""
    guess = Acceptance().rates(3)
    acceptance = acceptance_after([0.0], 10)
    acceptance.observe(0, 0, tokens=10**6)
    assert acceptance.rates(3) == pytest.approx(guess, abs=0.05)
    assert Acceptance(acceptance).rates(3) == pytest.approx(guess, abs=0.05)


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
        good.observe(2, 0)  # the target says nothing about second drafts
    first, second = good.rates(2)
    assert first < 0.35
    assert second < 0.65  # it was 0.8 before the drop


def test_acceptance_recovers_sooner_from_a_bad_passage_if_it_was_high_before() -> None:
    never, usually = acceptance_after([0.0], 200), acceptance_after([0.9], 200)
    for acceptance in (never, usually):
        for _ in range(15):
            acceptance.observe(1, 0)
        for _ in range(3):
            acceptance.observe(1, 1)
    assert usually.rates(1)[0] > never.rates(1)[0] + 0.2


def test_acceptance_of_an_untried_position_is_slightly_below_that_of_the_one_before() -> None:
    rates = acceptance_after([0.8], 100).rates(4)
    assert all(0.9 * a < b < a for a, b in pairwise(rates))


def test_acceptance_of_a_new_sequence_starts_from_the_last_sequence_and_adapts() -> None:
    bad = acceptance_after([0.0, 0.0], 200)
    fresh = Acceptance(bad)
    assert fresh.rates(1)[0] < 0.1
    assert acceptance_after([1.0], 15, into=fresh).rates(1)[0] > 0.8


def test_acceptance_is_not_biased_by_unverified_unlikely_drafts() -> None:
    found = []
    for seed in range(30):
        luck = Random(seed)
        acceptance = Acceptance()
        for _ in range(100):
            # second drafts are either sure or hopeless, and only the sure ones are verified
            second = luck.choice([0.95, 0.05])
            if second > 0.5:
                acceptance.observe(2, 1 + (luck.random() < second))
            else:
                acceptance.observe(1, 1, untold=[second])
        found.append(acceptance.rates(2)[1])
    assert sum(found) / len(found) == pytest.approx(0.5, abs=0.15)


def calibrated(rounds: int, seed: int, *, informative: bool, rate: float = 0.6) -> Calibration:
    luck = Random(seed)
    calibration = Calibration()
    for _ in range(rounds):
        confidence = luck.random()
        # an informative head is right nine times in ten if its confidence is above 0.5, else three times in ten
        chance = (0.9 if confidence > 0.5 else 0.3) if informative else rate
        calibration.observe(confidence, luck.random() < chance)
    return calibration


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60), st.floats(0, 1))
def test_calibrated_probability_rises_with_the_rate_of_the_position(
    seen: list[tuple[float, bool]], confidence: float
) -> None:
    calibration = Calibration()
    for sure, accepted in seen:
        calibration.observe(sure, accepted)
    row = [calibration.probability(confidence, i / 20) for i in range(21)]
    assert row == sorted(row)
    assert row[0] == 0
    assert row[-1] < 1


def test_calibration_ignores_confidence_without_data() -> None:
    sure, unsure = Calibration().probability(0.99, 0.7), Calibration().probability(0.1, 0.7)
    assert sure == pytest.approx(unsure)
    assert sure == pytest.approx(0.7, abs=0.03)


def test_calibration_uses_the_confidence_of_an_informative_head() -> None:
    calibration = calibrated(200, 0, informative=True)
    assert calibration.probability(0.2, 0.6) < 0.45
    assert calibration.probability(0.8, 0.6) > 0.75


def test_calibration_ignores_the_confidence_of_an_uninformative_head() -> None:
    spreads = []
    for seed in range(20):
        calibration = calibrated(200, seed, informative=False)
        spreads.append(calibration.probability(0.95, 0.6) - calibration.probability(0.1, 0.6))
    assert sum(spreads) / len(spreads) < 0.15
