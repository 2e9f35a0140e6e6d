"""Tests that drafts from text change no token: alone, in company, after a reused prefix, with and without a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm
from helpers.cheap_rows import COSTS, make_rows_cheap

from pymtp import LLM, Completion, SamplingParams

TOKENS = 80


@pytest.fixture
def cheap_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    make_rows_cheap(monkeypatch)


@pytest.fixture(scope="module")
def repeating(prompts: list[str]) -> list[str]:
    """Return prompts whose end occurred before, with a text of some 60 tokens after it."""
    return [f"{prompt}\n# again\n{prompt[: len(prompt) // 3]}" for prompt in prompts[:4]]


def params(temperature: float) -> list[SamplingParams]:
    return [SamplingParams(TOKENS, temperature=temperature, seed=i, ignore_eos=True) for i in range(4)]


def tokens(done: list[Completion]) -> list[list[int]]:
    return [one.token_ids for one in done]


@pytest.mark.usefixtures("cheap_rows")
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("options", [{}, {"n_seq_max": 4}, {"draft_text": 63, "n_seq_max": 2}], ids=repr)
def test_text_is_the_same_with_drafts_from_text(
    repeating: list[str], temperature: float, options: dict[str, Any]
) -> None:
    with make_llm(draft_tokens=0) as plain:
        expected = plain.generate(repeating, params(temperature))
    with make_llm(draft_tokens="auto", **options) as llm:
        first, again = (llm.generate(repeating, params(temperature)) for _ in range(2))
    assert tokens(first) == tokens(again) == tokens(expected)
    # the second time, an earlier output holds the whole text
    assert sum(one.stats.accepted_by_text for one in again) > 0
    assert sum(one.stats.rounds for one in again) < sum(one.stats.rounds for one in first)


def test_model_without_a_head_writes_the_same_text_in_fewer_rounds(
    headless: Path, repeating: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_llm(headless, draft_tokens=0) as plain:
        expected = plain.generate(repeating, params(0.0))
    with make_llm(headless, draft_tokens="auto") as llm:
        assert not llm.model.has_head
        make_rows_cheap(monkeypatch)
        llm._engine.depth.set_measured_costs({(1, 0): COSTS[1, 0]})  # without a head nothing is measured
        llm.generate(repeating, params(0.0))
        done = llm.generate(repeating, params(0.0))  # drafted from the first outputs
    assert tokens(done) == tokens(expected)
    assert sum(one.stats.rounds for one in done) < 0.9 * sum(one.stats.rounds for one in expected)


def drafted_from_an_earlier_output(llm: LLM, prompt: str, **keywords: Any) -> int:
    sampled = SamplingParams(TOKENS, temperature=1.5, seed=3, ignore_eos=True, **keywords)
    return llm.generate(prompt, sampled).stats.accepted_by_text


@pytest.mark.usefixtures("cheap_rows")
def test_outputs_are_drafted_from_by_later_requests_of_the_same_salt_alone(prompts: list[str]) -> None:
    with make_llm(draft_tokens="auto") as llm:
        first = drafted_from_an_earlier_output(llm, prompts[7], cache_salt="a")
        others = [
            drafted_from_an_earlier_output(llm, prompts[7], **keywords)
            for keywords in ({"cache_salt": "b"}, {}, {"cache_prompt": False})
        ]
        assert max(first, *others) < TOKENS // 4
        assert drafted_from_an_earlier_output(llm, prompts[7], cache_salt="a") > TOKENS // 2


@pytest.mark.parametrize("options", [{"cache_bytes": 0}, {"cache_prompt": False}], ids=repr)
def test_without_a_cache_no_output_is_kept_for_drafts(prompts: list[str], options: dict[str, Any]) -> None:
    with make_llm(draft_tokens="auto", **options) as llm:
        assert [drafted_from_an_earlier_output(llm, prompts[7]) < TOKENS // 4 for _ in range(2)] == [True, True]
