"""Tests of the fields of SamplingParams as keywords of calls."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from pymtp import LLM, AsyncLLM, InvalidRequestError, SamplingParams
from pymtp.engine.keywords import SamplingKeywords

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


def test_wrong_keyword_of_a_constructor_names_the_nearest_right_one() -> None:
    keywords: dict[str, Any] = {"n_threds": 1}
    with pytest.raises(TypeError, match=r"LLM\(\).*'n_threds'. Did you mean 'n_threads'"):
        LLM(**keywords)


def test_wrong_value_of_a_keyword_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens=0 must be"):
        llm.generate("import ", SamplingParams(), max_tokens=0)
