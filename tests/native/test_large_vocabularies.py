"""Tests of sampling from large vocabularies without a full sort: the tokens match those of the reference sampler."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.sample import sample
from hypothesis import given, settings
from hypothesis import strategies as st

from pymtp import SamplingParams
from pymtp.sampling import Sampler

FILTERS: list[dict[str, Any]] = [
    {"top_p": 1, "min_p": 0},
    {"top_p": 0.95, "min_p": 0},
    {"top_p": 1, "min_p": 0.02},
    {"top_p": 0.6, "min_p": 0.02},
    {"top_p": 0.9999, "min_p": 0},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**64 - 1),
    n=st.integers(1, 30_000),
    spread=st.sampled_from([0.0, 0.3, 2.0, 8.0, 40.0]),  # from equally likely tokens to a single likely token
    temperature=st.sampled_from([0.05, 0.7, 1.0, 5.0, 1e6]),
    position=st.integers(0, 2**31),
)
def test_sample_matches_the_reference_for_any_vocabulary_size(
    filters: dict[str, Any], seed: int, n: int, spread: float, temperature: float, position: int
) -> None:
    logits = np.random.default_rng(seed).normal(3, spread, n).astype(np.float32)
    logits[:: 1 + seed % 7] -= np.float32(4)
    params = SamplingParams(temperature=temperature, top_k=0, seed=seed, **filters)
    assert Sampler(params).sample(logits, position)[0] == sample(logits, position, params)


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 500), (0.2505, 501), (0.75, 1500)])
def test_top_p_keeps_the_lower_ids_of_equally_likely_tokens(top_p: float, kept: int) -> None:
    logits = np.full(3000, -300, np.float32)
    logits[1000:] = 1  # 2000 equal tokens
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=0, top_p=top_p, min_p=0, seed=0))
    sampled = [sampler.sample(logits, position)[0] for position in range(8000)]
    assert min(sampled) == 1000
    assert 1000 + kept - 3 <= max(sampled) < 1000 + kept


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_sample_never_takes_forbidden_tokens(filters: dict[str, Any]) -> None:
    logits = np.full(2000, -math.inf, np.float32)
    logits[[3, 700, 1999]] = [-50, -51, -49.5]
    sampler = Sampler(SamplingParams(temperature=3.0, top_k=0, seed=0, **filters))
    sampled = {sampler.sample(logits, position)[0] for position in range(300)}
    assert {3, 1999} <= sampled <= {3, 700, 1999}


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_sample_confidence_is_the_probability_in_the_whole_vocabulary(filters: dict[str, Any]) -> None:
    logits = np.random.default_rng(1).normal(0, 2, 5000).astype(np.float32)
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=0, seed=0, **filters))
    weights = np.exp(logits.astype(float))
    for position in range(20):
        token, confidence = sampler.sample(logits, position)
        assert confidence == pytest.approx(weights[token] / weights.sum(), rel=1e-5)


@pytest.mark.parametrize("temperature", [1e-30, 1e-300, 1e-310])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_sample_takes_the_lowest_of_equally_likely_ids_at_tiny_temperatures(
    filters: dict[str, Any], temperature: float
) -> None:
    for seed in range(30):
        logits = np.random.default_rng(seed).integers(1, 5, 1000).astype(np.float32)
        sampler = Sampler(SamplingParams(temperature=temperature, top_k=0, seed=seed, **filters))
        assert sampler.sample(logits, seed)[0] == int(logits.argmax())
