"""Tests of equal texts with the samplers beside top-k, top-p and min-p: drafts, company, cached and cut prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conftest import make_llm

from pymtp import LLM, SamplingParams

HOW: dict[str, dict[str, Any]] = {
    "dry": {"dry_multiplier": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": -1},
    "dry, greedy": {"dry_multiplier": 4.0, "dry_sequence_breakers": [], "temperature": 0.0},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "xtc, greedy": {"xtc_probability": 0.5, "temperature": 0.0},
    "top-n-sigma": {"top_n_sigma": 1.0, "temperature": 1.5},
    "typical": {"typical_p": 0.7, "top_k": 0},
    "dynamic temperature": {"dynatemp_range": 0.7, "dynatemp_exponent": 1.3},
    "order": {
        "samplers": ["temperature", "xtc", "min_p", "penalties"],
        "xtc_probability": 0.3,
        "presence_penalty": 0.4,
    },
    "all": {
        "dry_multiplier": 0.8,
        "xtc_probability": 0.5,
        "top_n_sigma": 1.5,
        "typical_p": 0.95,
        "dynatemp_range": 0.3,
        "repetition_penalty": 1.1,
        "penalty_last_n": -1,
        "top_k": 0,
        "logprobs": 1,
    },
    "grammar": {"grammar": 'root ::= ([a-z ]+ "\\n")+', "dry_multiplier": 2.0, "xtc_probability": 0.5},
}
N = 40  # tokens of a text
ALL = [SamplingParams(N, seed=n, ignore_eos=True, **({"temperature": 1.5} | own)) for n, own in enumerate(HOW.values())]
BEGINNING = "def add(a, b):\n    return a + b\n\n\n" * 9  # cut into several ubatches, and it repeats


@pytest.fixture(scope="module")
def questions(prompts: list[str]) -> list[str]:
    """Return a prompt for each of ALL; they begin alike."""
    return [BEGINNING + prompt[:200] for prompt in prompts[: len(ALL)]]


@pytest.fixture(scope="module")
def expected(questions: list[str]) -> list[list[int]]:
    """Generate the texts alone, without drafts and without reuse of prompts."""
    texts = []
    with make_llm(draft_tokens=0, cache_bytes=0) as llm:
        for question, params in zip(questions, ALL, strict=True):
            texts.append(llm.generate(question, params).token_ids)
            llm.generate("x", SamplingParams(1))  # so that the sequence keeps nothing of the prompt
    return texts


@pytest.mark.parametrize("own", range(len(ALL)), ids=list(HOW))
def test_sampler_changes_the_text(llm: LLM, questions: list[str], own: int) -> None:
    """Some of the texts differ from those without it."""
    plain = SamplingParams(N, ALL[own].temperature, seed=own, ignore_eos=True, grammar=ALL[own].grammar)
    # one at a time, because the first that differs is enough
    assert any(llm.generate(each, plain).token_ids != llm.generate(each, ALL[own]).token_ids for each in questions)


@pytest.mark.parametrize("depth", [1, 7, "auto"])
def test_text_with_each_sampler_is_the_same_with_drafts_in_company_and_from_cached_prompts(
    questions: list[str], expected: list[list[int]], depth: Any
) -> None:
    with make_llm(draft_tokens=depth, n_seq_max=3, n_ctx=3 * 1024, n_ubatch=64) as llm:
        together = llm.generate(questions, ALL)
        assert [c.token_ids for c in together] == expected
        alone = [llm.generate(question, params) for question, params in zip(questions, ALL, strict=True)]
        assert [c.token_ids for c in alone] == expected
        assert all(c.stats.cached_tokens > 0 for c in alone)
        if depth != "auto":
            assert all(c.stats.accepted > 0 for c in alone)


@pytest.mark.parametrize("own", range(len(ALL)), ids=list(HOW))
def test_other_seed_gives_another_text_and_the_same_seed_the_same(
    llm: LLM, questions: list[str], expected: list[list[int]], own: int
) -> None:
    again, other = (llm.generate(questions[own], replace(ALL[own], seed=seed)) for seed in (own, own + 1000))
    assert again.token_ids == expected[own]
    has_noise = ALL[own].temperature > 0 or ALL[own].xtc_probability > 0
    assert (other.token_ids != expected[own]) is has_noise
