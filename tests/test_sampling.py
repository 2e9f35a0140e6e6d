"""Tests of sampling: the inputs that a token depends on, and its distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.sample import filter_candidates, gumbel, philox, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.sampling import Sampler

logits_arrays = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-20, 20, width=16))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers of Random123 (kat_vectors, philox4x32 with 10 rounds)
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_matches_its_published_values(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert tuple(int(word) for word in philox(counter, key)) == expected


def test_noise_of_a_token_does_not_depend_on_other_candidates() -> None:
    few, many = gumbel(7, 3, np.array([5, 9])), gumbel(7, 3, np.arange(100))
    assert few.tolist() == [many[5], many[9]]


@pytest.mark.parametrize("other", [(8, 3), (7, 4), (7 + 2**32, 3)])
def test_seed_and_position_change_the_noise(other: tuple[int, int]) -> None:
    assert not np.any(gumbel(7, 3, np.arange(50)) == gumbel(*other, np.arange(50)))


def test_noise_is_standard_gumbel() -> None:
    noise = np.sort(gumbel(1, 0, np.arange(200_000)))
    expected = np.exp(-np.exp(-noise))
    distance = np.abs(expected - (np.arange(len(noise)) + 0.5) / len(noise)).max()
    assert distance < 1.63 / math.sqrt(len(noise))  # Kolmogorov-Smirnov test at a level of 1%


FILTERS: list[dict[str, Any]] = [
    {"top_k": 0, "top_p": 1, "min_p": 0},
    {"top_k": 5, "top_p": 1, "min_p": 0},
    {"top_k": 0, "top_p": 0.8, "min_p": 0},
    {"top_k": 0, "top_p": 1, "min_p": 0.1},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_samples_follow_the_exact_filtered_distribution(filters: dict[str, Any], temperature: float) -> None:
    logits = np.random.default_rng(3).normal(0, 1.5, 40).astype(np.float32)
    sampler = Sampler(SamplingParams(temperature=temperature, seed=3, **filters))
    n = 10_000
    counts = np.bincount([sampler.sample(logits, position)[0] for position in range(n)], minlength=len(logits))
    tokens, kept = filter_candidates(logits, sampler.params)
    expected = np.exp((kept - kept[0]) / temperature)
    expected *= n / expected.sum()
    assert counts.sum() == counts[tokens].sum(), "nothing that was filtered out is sampled"
    seldom = expected < 10  # tokens too rare for the chi-square approximation share one bin
    observed = [*counts[tokens][~seldom], counts[tokens][seldom].sum()]
    wanted = [*expected[~seldom], expected[seldom].sum()]
    chi_square = sum((o - e) ** 2 / e for o, e in zip(observed, wanted, strict=True) if e)
    degrees = sum(e > 0 for e in wanted) - 1
    # Wilson and Hilferty: the cube root of chi-square over its degrees is nearly normal; 2.33 is its 99th percentile
    z = ((chi_square / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    assert z < 2.33


params_lists = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.integers(0, 70),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -1.0]),
    presence_penalty=st.sampled_from([0.0, 2.0]),
    penalty_last_n=st.integers(-1, 12),
    logit_bias=st.dictionaries(st.integers(0, 5), st.sampled_from([-math.inf, -3.0, 2.5]), max_size=3),
)


@settings(max_examples=100)
@given(
    hnp.arrays(np.float32, st.integers(6, 400), elements=st.floats(-20, 20, width=16)),
    params_lists,
    st.integers(0, 2**31),
    st.lists(st.integers(0, 5), max_size=20),
)
def test_native_sampling_matches_the_reference(
    logits: Any, params: SamplingParams, position: int, before: list[int]
) -> None:
    token, confidence = Sampler(params).sample(logits, position, before)
    assert token == sample(logits, position, params, before)
    assert 0 < confidence <= 1


def test_confidence_of_a_greedy_sample_is_its_softmax() -> None:
    logits = np.array([0.0, 2.0, 1.0], dtype=np.float32)
    token, confidence = Sampler(SamplingParams()).sample(logits, 0)
    assert (token, confidence) == (1, pytest.approx(math.exp(2) / (1 + math.exp(2) + math.exp(1))))


@pytest.mark.parametrize("n", [40, 600])
def test_top_k_keeps_lower_ids_of_equal_logits(n: int) -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=20, top_p=1, min_p=0, seed=0))
    sampled = {sampler.sample(np.zeros(n, np.float32), position)[0] for position in range(400)}
    assert sampled == set(range(20))


@pytest.mark.parametrize(("top_p", "min_p", "kept"), [(0.25, 0.0, 1), (0.5, 0.0, 2), (0.51, 0.0, 3), (1.0, 1.0, 4)])
def test_top_p_stops_at_its_sum_and_min_p_keeps_probabilities_equal_to_its_bound(
    top_p: float, min_p: float, kept: int
) -> None:
    logits = np.array([1, 1, 1, 1, -200], np.float32)
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=0, top_p=top_p, min_p=min_p, seed=0))
    assert {sampler.sample(logits, position)[0] for position in range(200)} == set(range(kept))


def test_confidence_is_computed_over_sixteen_candidates() -> None:
    logits = np.linspace(0.0, 1.0, 100, dtype=np.float32)
    for params in (SamplingParams(), SamplingParams(temperature=1.0, top_k=5)):
        token, confidence = Sampler(params).sample(logits, 0)
        weights = np.exp(logits[-16:].astype(float))
        assert token is not None
        assert confidence == pytest.approx(np.exp(float(logits[token])) / weights.sum())


def test_logit_bias_of_minus_infinity_forbids_a_token() -> None:
    params = SamplingParams(temperature=2.0, top_k=0, top_p=1, min_p=0, logit_bias={3: -math.inf, 4: -math.inf})
    sampler = Sampler(params)
    assert {sampler.sample(np.zeros(6, np.float32), position)[0] for position in range(300)} == {0, 1, 2, 5}


@given(logits_arrays, st.integers(0, 70), st.floats(0.01, 1), st.floats(0, 1))
def test_filters_match_their_definitions(logits: Any, top_k: int, top_p: float, min_p: float) -> None:
    tokens, kept = filter_candidates(logits, SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p))
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: top_k or None]
    weights = [math.exp(float(logits[token]) - float(logits[order[0]])) for token in order]
    expected, reached = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if (reached >= top_p * sum(weights) * (1 + 1e-12) and top_p < 1) or weight < min_p:
            break
        expected.append(token)
        reached += weight
    # sums in another order may move the border of top-p by one candidate
    assert abs(len(tokens) - len(expected)) <= (top_p < 1)
    assert tokens.tolist() == order[: len(tokens)]
    assert len(tokens) >= 1
    assert kept.tolist() == [float(logits[token]) for token in tokens]


@settings(max_examples=30)
@given(logits_arrays)
def test_greedy_sampling_takes_the_first_maximum(logits: Any) -> None:
    assert Sampler(SamplingParams()).sample(logits, 0)[0] == int(np.argmax(logits))


@pytest.mark.parametrize("mean", [-40, 0, 40])
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=1.0, seed=1, top_k=5)], ids=["one", "few"]
)
def test_sampling_finds_candidates_at_any_position_and_with_negative_logits(
    params: SamplingParams, mean: float
) -> None:
    sampler = Sampler(params)
    for position in range(30):
        logits = np.random.default_rng(position).normal(mean, 5, 5000).astype(np.float32)
        assert sampler.sample(logits, position)[0] == sample(logits, position, params)


def test_seed_none_chooses_a_random_seed_and_reports_it() -> None:
    a, b = Sampler(SamplingParams(seed=None)), Sampler(SamplingParams(seed=None))
    assert a.seed != b.seed


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 300, 599])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_nan_or_infinity_give_no_token(wrong: float, at: int, temperature: float) -> None:
    logits = np.zeros(600, dtype=np.float32)
    logits[at] = wrong
    assert Sampler(SamplingParams(temperature=temperature)).sample(logits, 4)[0] is None


@pytest.mark.parametrize("shape", [(0,), (2, 3)])
def test_sample_refuses_logits_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="shape"):
        Sampler(SamplingParams()).sample(np.zeros(shape, np.float32), 0)


def test_sample_with_a_grammar_needs_the_whole_vocabulary(llm: LLM) -> None:
    sampler = Sampler(SamplingParams(grammar="root ::= [a]"))
    n = llm.model.n_vocab
    with sampler.compiled(llm.model), pytest.raises(InvalidRequestError, match=rf"\({n},\), not \({n - 1},\)"):
        sampler.sample(np.zeros(n - 1, np.float32), 0)


@pytest.mark.parametrize(
    ("before", "bias"), [([-1], {}), ([2, 6], {}), ([10**9], {}), ([], {6: 1.0}), ([], {10**9: 1})]
)
def test_sample_refuses_tokens_outside_the_vocabulary(before: list[int], bias: dict[int, float]) -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=1.5, logit_bias=bias))
    with pytest.raises(InvalidRequestError, match="no token"):
        sampler.sample(np.zeros(6, np.float32), 0, before)


def test_logit_bias_on_an_unknown_token_is_refused(llm: LLM) -> None:
    n = llm.model.n_vocab
    with pytest.raises(InvalidRequestError, match=f"{n}"):
        llm.generate("a", SamplingParams(logit_bias={n: 1.0}))


@pytest.mark.parametrize(
    "extreme",
    [
        {"logit_bias": {5: 1e30, 6: -1e30}},
        {"repetition_penalty": 1e-30},
        {"repetition_penalty": 1e30},
        {"frequency_penalty": -1e30, "presence_penalty": -1e30},
        {"frequency_penalty": 1e30, "presence_penalty": 1e30},
        {"temperature": 1e-300},
        {"temperature": 1e300, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 1.0, "top_p": 1e-300},
        {"dry_multiplier": 1e30, "dry_base": 1e30, "dry_allowed_length": 0, "dry_penalty_last_n": -1},
        {"top_n_sigma": 1e-30, "temperature": 1.0},
        {"typical_p": 1e-300, "temperature": 1.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0, "temperature": 1.0},
        {"dynatemp_range": 1e30, "dynatemp_exponent": 1e30, "temperature": 1.0},
        {"dynatemp_range": 1e30, "temperature": 1e-300, "samplers": "ttty"},
        {"temperature": 1e-300, "samplers": "tskyx", "top_n_sigma": 1.0, "typical_p": 0.5},
    ],
    ids=str,
)
def test_extreme_params_still_generate_text(llm: LLM, extreme: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True, penalty_last_n=-1, **extreme)
    assert len(llm.generate("x = 1\nx = 1\nx = 1\n", params).token_ids) == 8


def test_logit_bias_that_forbids_every_token_fails_and_the_model_stays_usable(llm: LLM) -> None:
    forbidden = dict.fromkeys(range(llm.model.n_vocab), -math.inf)
    with pytest.raises(InvalidRequestError, match="no token is allowed"):
        llm.generate("a", SamplingParams(logit_bias=forbidden))
    (letter,) = llm.model.tokenize("a")
    del forbidden[letter]
    assert llm.generate("a", SamplingParams(logit_bias=forbidden, max_tokens=2)).token_ids == [letter, letter]


def test_penalties_reduce_repetition(llm: LLM) -> None:
    def distinct(**penalties: float) -> int:
        params = SamplingParams(max_tokens=80, ignore_eos=True, **penalties)
        return len(set(llm.generate("x = 1\nx = 1\nx = 1\n", params).token_ids))

    assert distinct(repetition_penalty=1.5) > distinct() + 5
    assert distinct(presence_penalty=3.0) > distinct() + 5
    assert distinct(frequency_penalty=1.0) > distinct() + 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"ignore_eos": "no"},
        {"ignore_eos": np.array([True, False])},  # in the engine it would end concurrent requests
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"temperature": math.nan},
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": math.nan},
        {"repetition_penalty": 0},
        {"repetition_penalty": 1e-50},
        {"repetition_penalty": 1e39},
        {"frequency_penalty": math.nan},
        {"frequency_penalty": -1e39},
        {"presence_penalty": 1e39},
        {"presence_penalty": math.inf},
        {"penalty_last_n": -2},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {1: 1e39}},
        {"logit_bias": {1: -1e39}},
        {"logit_bias": [1]},
        {"seed": -1},
        {"seed": 2**64},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": [1]},
        {"dry_multiplier": -0.1},
        {"dry_multiplier": 1e31},
        {"dry_base": 0.9},
        {"dry_base": math.nan},
        {"dry_allowed_length": -1},
        {"dry_allowed_length": 1.5},
        {"dry_penalty_last_n": -2},
        {"dry_sequence_breakers": [""]},
        {"dry_sequence_breakers": ["a" * 101]},
        {"dry_sequence_breakers": ["a"] * 33},
        {"dry_sequence_breakers": ["\ud83d"]},
        {"dry_sequence_breakers": ["a\0"]},
        {"dry_sequence_breakers": [1]},
        {"top_n_sigma": -1},
        {"top_n_sigma": math.inf},
        {"typical_p": 0},
        {"typical_p": 1.1},
        {"xtc_probability": -0.1},
        {"xtc_probability": 1.1},
        {"xtc_threshold": math.nan},
        {"dynatemp_range": -1},
        {"dynatemp_exponent": -0.5},
        {"samplers": ["top_k", "mirostat"]},
        {"samplers": "kq"},
        {"samplers": ["adaptive_p"]},
        {"samplers": [3]},
        {"samplers": 3},
        {"samplers": {"top_k": 1}},
        {"samplers": b"kt"},
        {"samplers": "k" * 65},
    ],
    ids=str,
)
def test_params_outside_their_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        SamplingParams(**wrong)


@pytest.mark.parametrize("name", ["temperature", "top_p", "repetition_penalty", "presence_penalty"])
def test_integer_too_large_for_a_float_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: 10**400})
