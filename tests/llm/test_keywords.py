"""Tests of the fields of SamplingParams as keywords of calls."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from functools import partial
from typing import Any, get_type_hints

import pytest

import pymtp
from pymtp import LLM, AsyncLLM, InvalidRequestError, SamplingParams
from pymtp.engine.keywords import SamplingKeywords
from pymtp.model.names_elsewhere import OPTION_NAMES_ELSEWHERE
from pymtp.options import LLMOptions
from pymtp.samplers import SAMPLING_NAMES_ELSEWHERE

HELLO = [{"role": "user", "content": "Hello."}]


def test_keywords_are_the_fields_of_sampling_params_with_their_types() -> None:
    assert SamplingKeywords.__annotations__.keys() == {field.name for field in fields(SamplingParams)}
    assert get_type_hints(SamplingKeywords) == get_type_hints(SamplingParams) | {}


def test_every_call_takes_keywords(llm: LLM) -> None:
    assert len(llm.generate("import ", max_tokens=5).token_ids) == 5
    assert [len(one.token_ids) for one in llm.generate(["import ", "def "], max_tokens=5)] == [5, 5]
    assert sum(len(piece.token_ids) for piece in llm.stream("import ", max_tokens=5)) == 5
    assert len(llm.chat(HELLO, max_tokens=5, ignore_eos=True).token_ids) == 5
    assert sum(len(piece.token_ids) for piece in llm.stream_chat(HELLO, max_tokens=5, ignore_eos=True)) == 5


def test_every_call_of_an_async_llm_takes_keywords(llm: LLM) -> None:
    async def lengths() -> list[int]:
        async with AsyncLLM(llm) as several:
            whole = [
                await several.generate("import ", max_tokens=5),
                await several.chat(HELLO, max_tokens=5, ignore_eos=True),
            ]
            streams = [
                several.stream("import ", max_tokens=5),
                several.stream_chat(HELLO, max_tokens=5, ignore_eos=True),
            ]
            lengths = [len(one.token_ids) for one in whole]
            for stream in streams:
                lengths.append(sum([len(piece.token_ids) async for piece in stream]))
            return lengths

    assert asyncio.run(lengths()) == [5] * 4


def test_keywords_replace_fields_of_params(llm: LLM) -> None:
    params = SamplingParams(max_tokens=9, ignore_eos=True, temperature=0.8, seed=3)
    assert llm.generate("import ", params, max_tokens=5).token_ids == llm.generate("import ", params).token_ids[:5]
    lengths = [len(one.token_ids) for one in llm.generate(["import ", "def "], [params, params], max_tokens=5)]
    assert lengths == [5, 5]
    chat = llm.chat(HELLO, max_tokens=12)  # the other fields are those that a chat has by default
    assert chat.token_ids == llm.chat(HELLO, llm.get_default_sampling_params()).token_ids[:12]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("max_token", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("repeat_penalty", "repetition_penalty"),
        ("n_predict", "max_tokens"),
        ("response_format", "json_schema"),
        ("repeat_last_n", "penalty_last_n"),
        ("best_of", "n"),
        ("num_predict", "max_tokens"),
    ],
)
def test_wrong_keyword_names_the_nearest_right_one(llm: LLM, wrong: str, right: str) -> None:
    calls: list[Any] = [llm.generate, llm.stream, llm.chat, llm.stream_chat]
    for call in calls:
        with pytest.raises(TypeError, match=f"LLM.{call.__name__}.*{wrong!r}. Did you mean {right!r}"):
            call("import ", **{wrong: 5})


def test_keyword_of_chats_is_named_as_such(llm: LLM) -> None:
    chats: list[Any] = [llm.chat, llm.stream_chat]
    for call in chats:
        with pytest.raises(TypeError, match=r"'tool'. Did you mean 'tools'\?$"):
            call("import ", tool=5)
    calls: list[Any] = [llm.generate, llm.stream]
    for call in calls:
        with pytest.raises(TypeError, match=rf"LLM.{call.__name__}.*'tools': chat\(\) and stream_chat\(\) take it$"):
            call("import ", tools=5)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("n_threds", "Did you mean 'n_threads'"),
        ("model_path", "Did you mean 'model'"),
        ("max_model_len", "Did you mean 'n_ctx'"),
        ("max_num_seqs", "Did you mean 'n_seq_max'"),
        ("draft_model", "head for a file with a head, and draft_text for LlamaPromptLookupDecoding"),
        ("speculative_config", "draft_tokens for drafts of the head, and draft_text for drafts from the text"),
        ("prompt_lookup_num_tokens", "Did you mean 'draft_text'"),
        ("cache_type_k", "Did you mean 'type_k'"),
        ("ngl", "Did you mean 'n_gpu_layers'"),
        ("temperature", "give it to each call, or to SamplingParams"),
        ("tensor_parallel_size", "an LLM is one process"),
    ],
)
def test_wrong_keyword_of_a_constructor_names_the_nearest_right_one(wrong: str, right: str) -> None:
    for make in (LLM, AsyncLLM, LLMOptions):
        with pytest.raises(TypeError, match=rf"{make.__name__}\(\).*'{wrong}'.*{right}"):
            make(**{wrong: 1})
    if right.startswith("Did"):
        with pytest.raises(TypeError, match=rf"^generate\(\).*'{wrong}'.*{right}"):
            pymtp.generate("import ", **{wrong: 1})


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("repeat_penalty", "Did you mean 'repetition_penalty'"),
        ("max_token", "Did you mean 'max_tokens'"),
        ("mirostat_mode", "there is no mirostat"),
        ("do_sample", "a temperature of 0 is greedy"),
    ],
)
def test_wrong_field_of_sampling_params_names_the_nearest_right_one(llm: LLM, wrong: str, right: str) -> None:
    calls: list[Any] = [partial(SamplingParams, 5), partial(llm.generate, "a"), partial(llm.chat, HELLO)]
    for call in calls:
        with pytest.raises(TypeError, match=rf"{call.func.__name__}\(\).*'{wrong}'.*{right}"):
            call(**{wrong: 1})


def test_name_that_is_like_none_of_ours_gets_no_hint() -> None:
    with pytest.raises(TypeError, match=r"'sampling'$"):  # "samplers" is something else
        SamplingParams(**{"sampling": 1})  # type: ignore[arg-type]


def test_names_elsewhere_are_none_of_ours_and_tell_one_of_ours() -> None:
    for names, kind in ((SAMPLING_NAMES_ELSEWHERE, SamplingParams), (OPTION_NAMES_ELSEWHERE, LLMOptions)):
        ours = {field.name for field in fields(kind)}
        assert not ours & names.keys()
        meant = {word for word in names.values() if " " not in word}
        assert meant <= ours | {"tools", "tool_choice"}


def test_wrong_value_of_a_keyword_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens=0 must be"):
        llm.generate("import ", SamplingParams(), max_tokens=0)
