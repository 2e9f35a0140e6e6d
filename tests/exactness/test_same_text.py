"""Tests of equal texts: greedy text at every depth, sampled text, and repeated calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm

from pymtp import LLM, SamplingParams
from pymtp.context.context import Context

TOKENS = 40  # tokens for each prompt at each depth; tools/checks/same_text.py generates more
PARTS = 2  # number of tests that share the prompts, so that several processes can run them


def greedy(model: Path, prompts: list[str], draft_tokens: Any) -> list[list[int]]:
    with make_llm(model, draft_tokens=draft_tokens) as llm:
        return [c.token_ids for c in llm.generate(prompts, SamplingParams(max_tokens=TOKENS, ignore_eos=True))]


@pytest.mark.parametrize(("name", "part"), [(name, part) for name in ("shipped", "f32") for part in range(PARTS)])
def test_greedy_text_is_the_same_with_drafts_and_without(
    prompts: list[str], demo: Path, demo_f32: Path, name: str, part: int
) -> None:
    # Twelve prompts, of which the F32 model, which is slow, gets four. Each part tests half of the depths
    model, own = (demo, prompts[part:12:PARTS]) if name == "shipped" else (demo_f32, prompts[part:4:PARTS])
    plain = greedy(model, own, 0)
    for draft_tokens in (*range(1 + part % 2, 9, 2), "auto"):
        assert greedy(model, own, draft_tokens) == plain, draft_tokens


@pytest.mark.parametrize(
    "params", [SamplingParams(40), SamplingParams(40, temperature=0.8, seed=11)], ids=["greedy", "T=0.8"]
)
def test_repeated_call_gives_the_same_tokens(llm: LLM, prompts: list[str], params: SamplingParams) -> None:
    first = [c.token_ids for c in llm.generate(prompts[:3], params)]
    assert [c.token_ids for c in llm.generate(prompts[:3], params)] == first
    with make_llm() as fresh:
        assert [c.token_ids for c in fresh.generate(prompts[:3], params)] == first


def test_sampled_text_of_a_seed_is_the_same_with_drafts_and_without(llm: LLM, prompts: list[str]) -> None:
    params = SamplingParams(40, temperature=0.8, seed=5, ignore_eos=True)
    with make_llm(draft_tokens=0) as plain:
        expected = [c.token_ids for c in plain.generate(prompts[:4], params)]
    assert [c.token_ids for c in llm.generate(prompts[:4], params)] == expected
    with make_llm(draft_tokens="auto") as auto:
        assert [c.token_ids for c in auto.generate(prompts[:4], params)] == expected


def test_another_seed_gives_another_text(llm: LLM, prompts: list[str]) -> None:
    texts = {llm.generate(prompts[0], SamplingParams(40, temperature=1.0, seed=seed)).text for seed in range(5)}
    assert len(texts) == 5


def test_drafts_sampled_with_the_noise_of_the_target_are_accepted_more_often_than_greedy_drafts(
    llm: LLM, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(60, temperature=1.0, top_k=0, top_p=1, min_p=0, seed=2, ignore_eos=True)
    coupled = sum(c.stats.accepted for c in llm.generate(prompts[:4], params))

    def greedy_drafts(context: Context, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        made: dict[int, tuple[list[int], list[float]]] = {}
        for seq, token in tokens.items():
            chain = [token]
            for _ in range(n):
                chain.append(int(context.draft(chain[-1], seq).argmax()))
            made[seq] = chain[1:], [1.0] * n
        return made

    monkeypatch.setattr(Context, "draft_chains", greedy_drafts)
    uncoupled = sum(c.stats.accepted for c in llm.generate(prompts[:4], params))
    assert coupled > uncoupled


FILTERS = [
    SamplingParams(40, temperature=0.7, seed=5, ignore_eos=True),
    SamplingParams(40, temperature=1.0, top_k=0, top_p=1, min_p=0, seed=6, ignore_eos=True),
    SamplingParams(40, temperature=1.0, top_k=8, top_p=0.9, min_p=0.02, seed=7, ignore_eos=True),
    SamplingParams(40, temperature=0.9, seed=8, repetition_penalty=1.2, frequency_penalty=0.3, ignore_eos=True),
    SamplingParams(40, presence_penalty=1.5, logit_bias={10: -5.0, 32: 1.0}, ignore_eos=True),
]


@pytest.mark.parametrize("params", FILTERS, ids=range(len(FILTERS)))
def test_filters_and_penalties_give_the_same_text_with_drafts_and_without(
    llm: LLM, prompts: list[str], params: SamplingParams
) -> None:
    with make_llm(draft_tokens=0) as plain:
        expected = [c.token_ids for c in plain.generate(prompts[:2], params)]
    assert [c.token_ids for c in llm.generate(prompts[:2], params)] == expected
