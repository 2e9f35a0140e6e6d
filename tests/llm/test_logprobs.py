"""Tests of log-probabilities: the model's own, for each generated token, with drafts and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.bits import FOR_CUTS, ROWS_ALONE
from makers.make_model import make_model
from makers.model_shapes import PRESETS

from pymtp import LLM, InvalidRequestError, Model, SamplingParams
from pymtp.context.context import Context
from pymtp.sampling import Sampler

EXACT = 1e-6  # the precision in the documentation of TokenLogprobs
NEAR = EXACT if ROWS_ALONE else 1e-3  # difference between a row of a prompt and the same row in a round
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.7, "repetition_penalty": 1.3, "logit_bias": {10: -3.0}, "grammar": "root ::= [a-z \\n]+"},
]


def log_softmax(logits: Any) -> Any:
    row = logits.astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


@pytest.mark.parametrize("draft_tokens", [0, 3])
@pytest.mark.parametrize("way", WAYS, ids=["greedy", "T=0.9", "constrained"])
def test_logprobs_are_the_log_softmax_of_the_targets_logits(
    new_llm: Callable[..., LLM], demo_f32: Path, prompts: list[str], way: dict[str, Any], draft_tokens: int
) -> None:
    llm = new_llm(demo_f32, draft_tokens=draft_tokens, **FOR_CUTS)
    prompt = llm.model.tokenize(prompts[0])
    completion = llm.generate(prompt, SamplingParams(20, logprobs=5, ignore_eos=True, **way))
    assert completion.logprobs is not None
    assert [one.token_id for one in completion.logprobs] == completion.token_ids
    with Context(llm.model, n_ctx=1024, n_threads=1, max_outputs=512, **FOR_CUTS) as fresh:
        rows = fresh.prefill_logits([*prompt, *completion.token_ids[:-1]])[len(prompt) - 1 :]
    for row, one in zip(rows, completion.logprobs, strict=True):
        expected = log_softmax(row)
        assert one.logprob == pytest.approx(expected[one.token_id], abs=NEAR)
        likeliest = np.argsort(-row, kind="stable")[:5]
        assert [logprob for _, logprob in one.top] == pytest.approx(expected[likeliest].tolist(), abs=NEAR)


def assert_those_of_the_row(context: Context, tokens: list[int]) -> None:
    context.set_sampling(Sampler(SamplingParams(logprobs=7)))
    row = context.prefill(tokens)
    token = context.first_token()
    [one] = context.logprobs()
    likeliest = np.argsort(-row, kind="stable")[:7]
    assert one.token_id == token == likeliest[0]
    assert [token for token, _ in one.top] == likeliest.tolist()
    assert [logprob for _, logprob in one.top] == pytest.approx(log_softmax(row)[likeliest].tolist(), abs=EXACT)
    context.clear()


def test_logprobs_of_a_row_are_exact(llm: LLM, prompts: list[str]) -> None:
    for prompt in prompts:
        llm.context.clear()
        assert_those_of_the_row(llm.context, llm.model.tokenize(prompt))


@pytest.mark.parametrize("n_vocab", [511, 512, 513])
def test_logprobs_are_exact_for_any_vocabulary_size(tmp_path: Path, n_vocab: int) -> None:
    make_model(replace(PRESETS["tiny"], n_vocab=n_vocab), tmp_path / "model.gguf", weight_type="f32")
    with Model(tmp_path / "model.gguf") as model, Context(model, n_ctx=256, n_threads=1) as context:
        for token in range(20):
            assert_those_of_the_row(context, [token])


@pytest.mark.parametrize("way", WAYS, ids=["greedy", "T=0.9", "constrained"])
def test_logprobs_do_not_change_with_drafts(
    new_llm: Callable[..., LLM], prompts: list[str], way: dict[str, Any]
) -> None:
    params = SamplingParams(40, logprobs=3, ignore_eos=True, **way)
    with_drafts = new_llm(draft_tokens=3).generate(prompts[1], params)
    without = new_llm(draft_tokens=0).generate(prompts[1], params)
    assert with_drafts.token_ids == without.token_ids
    assert with_drafts.stats.accepted > 0
    assert with_drafts.logprobs is not None
    assert without.logprobs is not None
    for a, b in zip(with_drafts.logprobs, without.logprobs, strict=True):
        assert a.logprob == (b.logprob if ROWS_ALONE else pytest.approx(b.logprob, abs=0.02))


def test_stream_pieces_have_the_logprobs_of_their_tokens(llm: LLM, prompts: list[str]) -> None:
    stream = llm.stream(prompts[0], SamplingParams(20, logprobs=0))
    together = []
    for piece in stream:
        assert piece.logprobs is not None
        assert [one.token_id for one in piece.logprobs] == piece.token_ids
        assert all(one.top == () for one in piece.logprobs)
        together += piece.logprobs
    assert stream.completion.logprobs == together


def test_logprobs_are_none_by_default(llm: LLM, prompts: list[str]) -> None:
    assert llm.generate(prompts[0], SamplingParams(4)).logprobs is None
    assert llm.context.logprobs() == []


@pytest.mark.parametrize("wrong", [-1, 101, 1.5, True])
def test_logprobs_must_be_a_number_up_to_100(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="logprobs"):
        SamplingParams(logprobs=wrong)
