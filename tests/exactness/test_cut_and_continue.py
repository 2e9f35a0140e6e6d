"""Tests of cut texts: wherever a text is cut, the caches end at the cut, and a continuation is the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm
from helpers.bits import FOR_CUTS
from helpers.threads import wait_for_pause

from pymtp import LLM, CancelledError, SamplingParams

N = 16  # tokens of a text: more than a round of 8 drafts and the beginning of another
SHORT = 24  # tokens of a prompt that is prefilled again for each cut
DEPTHS = [1, 3, 8, "auto"]
WAYS = {"greedy": {}, "T=0.9": {"temperature": 0.9, "seed": 4}, "penalized": {"repetition_penalty": 1.3}}


def params(n: int, way: str, **more: Any) -> SamplingParams:
    return SamplingParams(n, ignore_eos=True, **WAYS[way], **more)


@pytest.fixture(scope="module", params=DEPTHS)
def drafting(request: pytest.FixtureRequest, demo_f32: Path) -> Iterator[LLM]:
    """Make an LLM of the F32 model with a fixed number of drafts, or with one that changes."""
    with make_llm(demo_f32, draft_tokens=request.param, **FOR_CUTS) as llm:
        yield llm


@pytest.mark.parametrize(
    ("drafting", "way"),
    [
        *((depth, "greedy") for depth in DEPTHS),
        *((depth, way) for depth in (3, "auto") for way in ("T=0.9", "penalized")),
    ],
    indirect=["drafting"],
)
def test_text_cut_anywhere_has_the_same_continuation(drafting: LLM, prompts: list[str], way: str) -> None:
    prompt = drafting.model.tokenize(prompts[2])[:SHORT]
    whole = drafting.generate(prompt, params(N, way)).token_ids
    for cut in range(1, drafting.context.draft_tokens + 4):
        first = drafting.generate(prompt, params(cut, way))
        assert drafting.context.tokens() == [*prompt, *first.token_ids[:-1]]
        rest = drafting.generate([*prompt, *first.token_ids], params(N - cut, way))
        assert rest.stats.cached_tokens == len(prompt) + cut - 1
        assert first.token_ids + rest.token_ids == whole


def test_stop_string_inside_accepted_drafts_cuts_the_text_there(drafting: LLM, prompts: list[str]) -> None:
    prompt = drafting.model.tokenize(prompts[2])[:SHORT]
    whole = drafting.generate(prompt, params(N, "greedy"))
    for at in range(2, len(whole.text) - 3, 7):
        stop = whole.text[at : at + 3]
        cut = drafting.generate(prompt, params(N, "greedy", stop=stop))
        assert cut.text == whole.text[: whole.text.index(stop)]
        n = len(cut.token_ids)
        assert drafting.context.tokens() == [*prompt, *cut.token_ids[:-1]]
        rest = drafting.generate([*prompt, *cut.token_ids], params(N - n, "greedy")) if n < N else None
        assert cut.token_ids + (rest.token_ids if rest else []) == whole.token_ids


def test_stop_token_inside_accepted_drafts_cuts_the_text_there(drafting: LLM, prompts: list[str]) -> None:
    prompt = drafting.model.tokenize(prompts[2])[:SHORT]
    whole = drafting.generate(prompt, params(N, "greedy")).token_ids
    for stop in {*whole[3::7]}:
        n = whole.index(stop) + 1
        cut = drafting.generate(prompt, params(N, "greedy", stop_token_ids=[stop]))
        assert (cut.token_ids, cut.finish_reason) == (whole[:n], "stop")
        assert cut.text == drafting.model.detokenize(whole[: n - 1])
        assert drafting.context.tokens() == [*prompt, *whole[: n - 1]]
        rest = drafting.generate([*prompt, *cut.token_ids], params(N - n, "greedy")) if n < N else None
        assert cut.token_ids + (rest.token_ids if rest else []) == whole


def test_stop_tokens_cut_each_text_in_company_as_alone(new_llm: Callable[..., LLM], prompts: list[str]) -> None:
    llm, four = new_llm(n_seq_max=4), prompts[:4]
    stops = [range(i, llm.model.n_vocab, 20) for i in range(4)]
    own = [SamplingParams(200, temperature=0.8, seed=i, stop_token_ids=stops[i], ignore_eos=True) for i in range(4)]
    together = [done.token_ids for done in llm.generate(four, own)]
    alone = [llm.generate(prompt, one).token_ids for prompt, one in zip(four, own, strict=True)]
    plain = [replace(one, draft_tokens=0) for one in own]
    assert together == alone == [llm.generate(prompt, one).token_ids for prompt, one in zip(four, plain, strict=True)]
    for tokens, one in zip(alone, own, strict=True):
        assert [token in one.stop_token_ids for token in tokens] == [False] * (len(tokens) - 1) + [True]


def test_closed_stream_leaves_a_reusable_state(drafting: LLM, prompts: list[str]) -> None:
    prompt = drafting.model.tokenize(prompts[3])[:SHORT]
    whole = drafting.generate(prompt, params(N + 1, "T=0.9")).token_ids  # a stream may end before its close
    for pieces in (1, 2, 3):
        stream = drafting.stream(prompt, params(N, "T=0.9"))
        for _ in range(pieces):
            next(stream)
        stream.close()
        first = stream.completion.token_ids
        rest = drafting.generate([*prompt, *first], params(N + 1 - len(first), "T=0.9"))
        assert rest.stats.cached_tokens == len(prompt) + len(first) - 1
        assert first + rest.token_ids == whole


def test_prompt_reuses_the_state_of_its_beginning_from_an_earlier_prompt(
    new_llm: Callable[..., LLM], prompts: list[str]
) -> None:
    llm, apart = new_llm(), new_llm(cache_prompt=False)
    shared = [token for prompt in prompts for token in llm.model.tokenize(prompt)][:200]
    done, fresh = ([each.generate([*shared, i], params(8, "greedy")) for i in range(4)] for each in (llm, apart))
    assert [one.token_ids for one in done] == [one.token_ids for one in fresh]
    assert [one.stats.cached_tokens for one in done] == [0, 0, 200, 200]
    assert [one.stats.cached_tokens for one in fresh] == [0] * 4


def test_text_is_the_same_after_an_interrupted_call_whose_state_is_not_reused(
    new_llm: Callable[..., LLM], prompts: list[str]
) -> None:
    llm = new_llm(cache_bytes=0)
    prompt = llm.model.tokenize(prompts[0])
    whole = llm.generate(prompt, params(300, "greedy")).token_ids
    stream = llm.stream(prompt, params(300, "greedy"))
    first = next(stream).token_ids
    wait_for_pause(llm)
    llm.context.cancel()
    with pytest.raises(CancelledError):
        llm.context.verify(first[-1:])
    assert llm.context.tokens() == []
    written = [*first, *(token for piece in stream for token in piece.token_ids)]
    assert stream.completion.finish_reason == "cancelled"
    rest = llm.generate([*prompt, *written], params(N, "greedy"))
    assert rest.stats.cached_tokens == 0
    assert [*written, *rest.token_ids] == whole[: len(written) + N]


def test_cancel_of_a_paused_stream_keeps_the_state(llm: LLM, prompts: list[str]) -> None:
    prompt = llm.model.tokenize(prompts[0])
    stream = llm.stream(prompt, params(300, "greedy"))
    written = list(next(stream).token_ids)
    wait_for_pause(llm)
    llm.cancel()
    written += [token for piece in stream for token in piece.token_ids]
    assert stream.completion.finish_reason == "cancelled"
    rest = llm.generate([*prompt, *written], params(5, "greedy"))
    assert rest.stats.cached_tokens == len(prompt) + len(written) - 1


def test_cache_prompt_false_reuses_nothing(new_llm: Callable[..., LLM], prompts: list[str]) -> None:
    llm = new_llm(cache_prompt=False)
    prompt = llm.model.tokenize(prompts[0])
    first = llm.generate(prompt, params(5, "greedy")).token_ids
    assert llm.generate([*prompt, *first], params(5, "greedy")).stats.cached_tokens == 0
