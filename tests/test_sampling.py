"""Claims about drawing a token: what it depends on, and that it follows the distribution it should."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pymtp import InvalidRequestError, NativeError, SamplingParams
from pymtp.sampling import Sampler, filter_candidates, gumbel, philox

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
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert tuple(int(word) for word in philox(counter, key)) == expected


def test_noise_of_a_token_does_not_depend_on_the_other_candidates() -> None:
    few, many = gumbel(7, 3, np.array([5, 9])), gumbel(7, 3, np.arange(100))
    assert few.tolist() == [many[5], many[9]]


@pytest.mark.parametrize("other", [(8, 3), (7, 4), (7 + 2**32, 3)])
def test_seed_and_position_change_the_noise(other: tuple[int, int]) -> None:
    assert not np.any(gumbel(7, 3, np.arange(50)) == gumbel(*other, np.arange(50)))


def test_noise_is_standard_gumbel() -> None:
    noise = np.sort(gumbel(1, 0, np.arange(200_000)))
    expected = np.exp(-np.exp(-noise))
    distance = np.abs(expected - (np.arange(len(noise)) + 0.5) / len(noise)).max()
    assert distance < 1.63 / math.sqrt(len(noise))  # Kolmogorov-Smirnov at 1%


def test_drawn_tokens_follow_the_softmax() -> None:
    logits = np.array([1.0, 0.0, -1.0, 2.0, -30.0], dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=0.8, top_k=0, top_p=1, min_p=0, seed=3))
    n = 20_000
    counts = np.bincount([sampler.draw(logits, position) for position in range(n)], minlength=5)
    p = np.exp(logits / 0.8)
    p /= p.sum()
    chi_square = float((((counts - n * p) ** 2) / (n * p))[:4].sum())
    assert chi_square < 16.3  # three degrees of freedom, 0.1%


@given(logits_arrays, st.integers(0, 70), st.floats(0.01, 1), st.floats(0, 1))
def test_filters_keep_what_their_definitions_keep(logits: Any, top_k: int, top_p: float, min_p: float) -> None:
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
    # sums in another order may put the border of top-p one candidate off
    assert abs(len(tokens) - len(expected)) <= (top_p < 1)
    assert tokens.tolist() == order[: len(tokens)]
    assert len(tokens) >= 1
    assert kept.tolist() == [float(logits[token]) for token in tokens]


@given(logits_arrays, st.integers(0, 2**64 - 1), st.integers(0, 2**31))
def test_a_drawn_token_is_among_the_candidates(logits: Any, seed: int, position: int) -> None:
    params = SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.1, seed=seed)
    token = Sampler(params).draw(logits, position)
    assert token in filter_candidates(logits, params)[0]
    assert token == Sampler(params).draw(logits, position)


@settings(max_examples=30)
@given(logits_arrays)
def test_temperature_zero_takes_the_first_of_the_most_likely(logits: Any) -> None:
    assert Sampler(SamplingParams()).draw(logits, 0) == int(np.argmax(logits))


def test_no_seed_draws_one_and_says_which() -> None:
    a, b = Sampler(SamplingParams(seed=None)), Sampler(SamplingParams(seed=None))
    assert a.seed != b.seed


def test_logits_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(NativeError, match="position 4 are not finite"):
        Sampler(SamplingParams()).draw(np.array([0, np.nan], dtype=np.float32), 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
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
        {"seed": -1},
        {"seed": 2**64},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": [1]},
    ],
    ids=str,
)
def test_values_outside_their_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        SamplingParams(**wrong)
