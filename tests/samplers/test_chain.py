"""Tests of orders of samplers: the tokens match those of a reference and of llama.cpp's own samplers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.chain import chain, pick
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pymtp import LLM, SamplingParams
from pymtp.native import ffi, lib
from pymtp.samplers import SAMPLERS
from pymtp.sampling import Sampler

ALL: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}  # no sampler of these is on
EACH: list[dict[str, Any]] = [
    {"dry_multiplier": 0.8},
    {"dry_multiplier": 2.0, "dry_base": 1.2, "dry_allowed_length": 1, "dry_penalty_last_n": -1},
    {"dry_multiplier": 1.0, "dry_allowed_length": 0, "dry_penalty_last_n": 7},
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 0.3, "temperature": 1.7},
    {"typical_p": 0.9},
    {"typical_p": 0.2},
    {"typical_p": 0.5, "top_k": 20},
    {"xtc_probability": 0.5, "xtc_threshold": 0.02},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"xtc_probability": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"xtc_probability": 1.0, "temperature": 0.0, "xtc_threshold": 0.01},
    {"dynatemp_range": 0.5},
    {"dynatemp_range": 3.0, "dynatemp_exponent": 2.5, "top_k": 30},
    {"dynatemp_range": 1.0, "temperature": 0.0},
    {"samplers": "kpmt", "top_k": 9, "top_p": 0.8, "min_p": 0.1, "temperature": 0.6, "repetition_penalty": 3.0},
    {"samplers": ["temperature", "min_p", "top_p"], "temperature": 0.5, "top_p": 0.7, "min_p": 0.05},
    {"samplers": ["temperature", "top_k"], "temperature": 0.0},
    {"samplers": ["top_k", "penalties", "dry"], "top_k": 12, "presence_penalty": 0.5, "dry_multiplier": 1.0},
    {"samplers": []},
]


@pytest.mark.parametrize("own", EACH, ids=str)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**64 - 1), n=st.integers(10, 5000), spread=st.sampled_from([0.5, 2.0, 8.0]))
def test_each_sampler_matches_its_definition(own: dict[str, Any], seed: int, n: int, spread: float) -> None:
    numbers = np.random.default_rng(seed)
    logits = numbers.normal(0, spread, n).astype(np.float32)
    logits[:: 3 + seed % 7] = -np.inf
    logits[7] = logits.max() + 1  # so that several samplers have something to drop
    before = numbers.integers(0, 4, 40).tolist()
    params = SamplingParams(**(ALL | own), seed=seed)
    for position in (0, 5, 2**31):
        token, confidence = Sampler(params).sample(logits, position, before)
        assert token == pick(chain(logits, position, params, before), position, seed)
        assert 0 <= confidence <= 1


orders = st.permutations(SAMPLERS).flatmap(lambda order: st.integers(1, 9).map(lambda n: order[:n]))
numbers_of = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.4, 1.0, 1.8]),
        "top_k": st.sampled_from([0, 5, 40]),
        "top_p": st.sampled_from([0.6, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.07]),
        "typical_p": st.sampled_from([0.4, 0.95, 1.0]),
        "top_n_sigma": st.sampled_from([0.0, 0.8, 2.0]),
        "xtc_probability": st.sampled_from([0.0, 1.0]),
        "xtc_threshold": st.sampled_from([0.01, 0.1]),
        "dynatemp_range": st.sampled_from([0.0, 0.3]),
        "dynatemp_exponent": st.sampled_from([0.7, 1.0]),
        "dry_multiplier": st.sampled_from([0.0, 0.8]),
        "dry_allowed_length": st.integers(1, 3),
        "dry_penalty_last_n": st.sampled_from([-1, 0, 20]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.2]),
        "presence_penalty": st.sampled_from([0.0, 0.4]),
        "penalty_last_n": st.sampled_from([-1, 0, 16]),
    }
)


@settings(max_examples=40)
@given(order=orders, numbers=numbers_of, seed=st.integers(0, 2**32))
def test_orders_match_the_reference(order: list[str], numbers: dict[str, Any], seed: int) -> None:
    luck = np.random.default_rng(seed)
    logits, before = luck.normal(0, 2, 300).astype(np.float32), luck.integers(0, 5, 50).tolist()
    params = SamplingParams(**numbers, samplers=order, seed=seed)
    for position in range(3):
        assert Sampler(params).sample(logits, position, before)[0] == pick(
            chain(logits, position, params, before), position, seed
        )


def llama_probabilities(llm: LLM, params: SamplingParams, logits: Any, before: list[int]) -> Any:
    """Return the distribution after llama.cpp's own samplers."""
    breakers = [ffi.new("char[]", breaker.encode()) for breaker in params.dry_sequence_breakers]
    sampler = Sampler(params)  # holds the memory that `native` refers to
    out = np.zeros(llm.model.n_vocab, np.float32)
    found = lib.pymtp_llama_samplers(
        llm.model.handle,
        sampler.native,
        ffi.new("char *[]", breakers),
        len(breakers),
        ffi.from_buffer("float[]", logits),
        before,
        len(before),
        ffi.from_buffer("float[]", out),
    )
    assert found == lib.PYMTP_OK
    return out


# the order of top-n-sigma and dynamic temperature matters: llama.cpp counts tokens that top-n-sigma has dropped
@settings(max_examples=30)
@given(order=orders, numbers=numbers_of, seed=st.integers(0, 2**31))
def test_orders_match_llama_cpps_own_samplers(llm: LLM, order: list[str], numbers: dict[str, Any], seed: int) -> None:
    if numbers["top_n_sigma"]:
        numbers = numbers | {"dynatemp_range": 0.0, "typical_p": 1.0}
    luck = np.random.default_rng(seed)
    logits = luck.normal(0, 2, llm.model.n_vocab).astype(np.float32)
    text = "one: two three\none: two three four\nFive *one* two three"
    before = (llm.model.tokenize(text) * 2)[: luck.integers(3, 60)]
    logits[before] += 4  # so that penalties matter
    params = SamplingParams(**numbers, samplers=order, seed=seed)
    with np.errstate(divide="ignore"):
        row = np.log(llama_probabilities(llm, params, logits, before).astype(np.float64))
    sampler = Sampler(params)
    with sampler.compiled(llm.model):
        for position in range(20):
            assert sampler.sample(logits, position, before)[0] == pick(row, position, seed)


BREAKERS = ["\n", ":", "*", "def", "return self", "   x", "ä", "class Foo(Bar):", "="]


@settings(max_examples=30)
@given(
    breakers=st.lists(st.sampled_from(BREAKERS), max_size=4, unique=True),
    parts=st.lists(st.sampled_from([*BREAKERS, "x = 1", " self", " ret", "urn", "cla", "ss Foo"]), max_size=30),
    length=st.integers(0, 3),
)
def test_dry_ends_repetitions_where_llama_cpp_does(
    llm: LLM, breakers: list[str], parts: list[str], length: int
) -> None:
    before = llm.model.tokenize("".join(parts) + "x = 1 self x = 1 self x")
    params = SamplingParams(
        **ALL, samplers=["dry"], dry_multiplier=0.4, dry_allowed_length=length, dry_penalty_last_n=-1,
        dry_sequence_breakers=breakers, seed=1,
    )  # fmt: skip
    logits = np.zeros(llm.model.n_vocab, np.float32)
    logits[before] = 5
    with np.errstate(divide="ignore"):
        row = np.log(llama_probabilities(llm, params, logits, before).astype(np.float64))
    sampler = Sampler(params)
    with sampler.compiled(llm.model):
        for position in range(40):
            assert sampler.sample(logits, position, before)[0] == pick(row, position, 1)


def test_dry_does_not_look_beyond_a_breaker(llm: LLM) -> None:
    line = llm.model.tokenize("alpha beta gamma delta\n")
    text, continued = [*line, *line[:-2]], line[-2]
    logits = np.zeros(llm.model.n_vocab, np.float32)
    logits[continued] = 30
    sampled = []
    for breaker in ("\n", llm.model.detokenize([line[-3]])):
        sampler = Sampler(SamplingParams(dry_multiplier=100.0, dry_sequence_breakers=[breaker]))
        with sampler.compiled(llm.model):
            sampled.append(sampler.sample(logits, 9, text)[0] == continued)
    assert sampled == [False, True]


@settings(max_examples=50)
@given(
    hnp.arrays(np.float32, st.integers(6, 400), elements=st.floats(-20, 20, width=16)),
    st.integers(0, 40),
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    st.integers(0, 2**31),
)
def test_chain_gives_the_tokens_of_the_faster_code(
    logits: Any, top_k: int, top_p: float, min_p: float, temperature: float, position: int
) -> None:
    params: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "temperature": temperature}
    params |= {"repetition_penalty": 1.2, "presence_penalty": 0.3, "seed": position}
    before = [1, 2, 3, 3]
    token, _ = Sampler(SamplingParams(**params)).sample(logits, position, before)
    for chained in ({"samplers": SAMPLERS}, {"xtc_probability": 1e-300}, {"dynatemp_range": 1e-300}):
        if temperature or "dynatemp_range" not in chained:
            assert Sampler(SamplingParams(**params, **chained)).sample(logits, position, before)[0] == token


def test_xtc_drops_at_its_rate_and_independently_of_the_noise_of_tokens() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    n = 20_000
    sampler = Sampler(SamplingParams(**ALL, seed=9, xtc_probability=0.3, xtc_threshold=0.25))
    plain = Sampler(SamplingParams(**ALL, seed=9))
    drawn = np.array([sampler.sample(logits, position)[0] for position in range(n)])
    without = np.array([plain.sample(logits, position)[0] for position in range(n)])
    expected = 0.7 * np.array([0.5, 0.3, 0.2]) + 0.3 * np.array([0, 0.6, 0.4])
    shares = np.bincount(drawn, minlength=3) / n
    assert np.abs(shares - expected).max() < 4 * math.sqrt(0.25 / n)
    moved = (drawn != 0)[without == 0].mean()
    assert abs(moved - 0.3) < 4 * math.sqrt(0.21 / (n / 2))


def test_penalty_of_dry_never_forbids_the_only_token_that_a_grammar_allows(llm: LLM) -> None:
    params = SamplingParams(
        40, grammar='root ::= "a "+', dry_multiplier=1e30, dry_base=1e30, dry_sequence_breakers=(), ignore_eos=True
    )
    assert llm.generate("a a a a", params).text.strip("a ") == ""


@pytest.mark.parametrize("own", EACH, ids=str)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_of_nan_or_infinity_give_no_token(own: dict[str, Any], wrong: float) -> None:
    logits = np.zeros(600, dtype=np.float32)
    logits[300] = wrong
    assert Sampler(SamplingParams(**(ALL | own))).sample(logits, 4, [1, 2, 1, 2])[0] is None
