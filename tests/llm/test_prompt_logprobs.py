"""Tests of the log-probabilities of prompts."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from pymtp import LLM, AsyncLLM, InvalidRequestError, SamplingParams
from pymtp.context.context import Context
from pymtp.engine.embedder import CHUNK

K = 4


def test_prompt_logprobs_are_the_log_softmax_of_the_targets_logits(llm: LLM, prompts: list[str]) -> None:
    tokens = llm.model.tokenize(" ".join(prompts))[: 2 * CHUNK + 9]
    assert len(tokens) == 2 * CHUNK + 9  # three chunks
    found = llm.generate(tokens, max_tokens=1, prompt_logprobs=K).prompt_logprobs
    with Context(llm.model, n_ctx=512, n_threads=1, max_outputs=512) as fresh:
        rows = fresh.prefill_logits(tokens)
    assert found is not None
    assert found[0] is None
    assert len(found) == len(tokens)
    for row, token, one in zip(rows, tokens[1:], found[1:], strict=False):
        expected = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
        likeliest = np.argsort(-row, kind="stable")[:K].tolist()
        assert one is not None
        assert one.token_id == token
        assert one.logprob == pytest.approx(expected[token], abs=1e-6)
        assert [number for number, _ in one.top] == likeliest
        assert [logprob for _, logprob in one.top] == pytest.approx(expected[likeliest].tolist(), abs=1e-6)


def test_prompt_logprobs_agree_with_those_of_the_output(llm: LLM) -> None:
    done = llm.generate("import ", max_tokens=12, logprobs=K, ignore_eos=True)
    again = llm.generate([*done.prompt_token_ids, *done.token_ids], max_tokens=1, prompt_logprobs=K).prompt_logprobs
    assert again is not None
    assert done.logprobs is not None
    for one, other in zip(done.logprobs, again[len(done.prompt_token_ids) :], strict=True):
        assert other is not None
        assert (one.token_id, [n for n, _ in one.top]) == (other.token_id, [n for n, _ in other.top])
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_prompt_logprobs_change_neither_the_text_nor_with_the_cache(llm: LLM, prompts: list[str]) -> None:
    prompt = "".join(prompts[1:4])  # long enough for the cache
    params = SamplingParams(24, temperature=0.8, seed=2)
    plain = [llm.generate(prompt, params) for _ in range(3)][-1]
    assert plain.prompt_logprobs is None
    several = [llm.generate(prompt, params, prompt_logprobs=2, cache_prompt=cached) for cached in (True, False)]
    assert several[0].stats.cached_tokens > 0 == several[1].stats.cached_tokens
    assert [one.token_ids for one in several] == [plain.token_ids] * 2
    assert several[0].prompt_logprobs == several[1].prompt_logprobs


def test_prompt_logprobs_are_those_of_each_prompt_of_a_batch_and_of_streams(llm: LLM) -> None:
    params = SamplingParams(4, prompt_logprobs=1)
    alone = [llm.generate(prompt, params).prompt_logprobs for prompt in ("import os", "def f(a):")]
    assert alone[0] != alone[1]
    assert [one.prompt_logprobs for one in llm.generate(["import os", "def f(a):"], params)] == alone
    several = llm.generate("import os", params, n=3, temperature=1.0)
    assert [one.prompt_logprobs for one in (several, *several.others)] == [alone[0]] * 3
    assert several.prompt_logprobs is not several.others[0].prompt_logprobs
    stream = llm.stream("import os", params)
    assert list(stream)
    assert stream.completion.prompt_logprobs == alone[0]

    async def ask() -> Any:
        async with AsyncLLM(llm) as other:
            one, two = await other.generate(["import os", "def f(a):"], params)
            return [one.prompt_logprobs, two.prompt_logprobs]

    assert asyncio.run(ask()) == alone


def test_logits_of_few_tokens_are_in_memory_at_a_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    original = Context.prefill_logits

    def spy(self: Context, tokens: Any, seq: int = 0) -> Any:
        lengths.append(len(tokens))
        return original(self, tokens, seq)

    monkeypatch.setattr(Context, "prefill_logits", spy)
    llm.generate(list(range(5, 5 + 3 * CHUNK)), max_tokens=1, prompt_logprobs=0)
    assert lengths == [CHUNK, CHUNK, CHUNK - 1]


def test_cancelled_computation_of_prompt_logprobs_cancels_the_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Context.prefill_logits

    def cancel(self: Context, tokens: Any, seq: int = 0) -> Any:
        llm.cancel()
        return original(self, tokens, seq)

    monkeypatch.setattr(Context, "prefill_logits", cancel)
    done = llm.generate(list(range(5, 5 + 2 * CHUNK)), max_tokens=3, prompt_logprobs=0)
    assert (done.finish_reason, done.prompt_logprobs) == ("cancelled", None)
    several = llm.generate([[5, 6], [7, 8], [9, 10]], max_tokens=3, prompt_logprobs=0)
    assert [one.prompt_logprobs is None for one in several] == [False, True, True]  # the first was one chunk


@pytest.mark.parametrize("value", [-1, 101, 1.5, True, "2"])
def test_wrong_number_of_prompt_logprobs_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt_logprobs=.* must be a whole number from 0 to 100"):
        SamplingParams(prompt_logprobs=value)
