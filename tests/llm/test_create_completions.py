"""Tests of create_chat_completion and create_completion: OpenAI's objects without a server."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import numpy as np
import pytest
from helpers.late import openai

from pymtp import LLM, AsyncLLM, ContextFullError, InvalidRequestError

HELLO = [{"role": "user", "content": "Hello."}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 20}


def test_chat_completion_is_that_of_openai_s_api(llm: LLM) -> None:
    answer = llm.create_chat_completion(HELLO, **GREEDY)
    read = openai.types.chat.ChatCompletion.model_validate(answer, strict=True)
    done = llm.chat(HELLO, **GREEDY)
    assert read.choices[0].message.content == done.content
    assert read.usage is not None
    assert read.usage.prompt_tokens == len(done.prompt_token_ids)
    assert read.usage.completion_tokens == len(done.token_ids)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS, "tool_choice": "required", "max_tokens": 120},
        {"response_format": {"type": "json_object"}, "max_tokens": 40},
        {"stream_options": {"include_usage": True}, "logprobs": True},
    ],
    ids=["text", "tools", "json", "usage"],
)
def test_chunks_of_a_chat_add_up_to_the_completion(llm: LLM, fields: dict[str, Any]) -> None:
    whole = llm.create_chat_completion(HELLO, **GREEDY | fields)
    chunks = list(llm.create_chat_completion(HELLO, stream=True, **GREEDY | fields))
    read = [openai.types.chat.ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    deltas = [chunk.choices[0].delta for chunk in read if chunk.choices]
    message = whole["choices"][0]["message"]
    assert "".join(delta.content or "" for delta in deltas) == (message["content"] or "")
    arguments = [""] * len(message.get("tool_calls", []))
    for call in (call for delta in deltas for call in delta.tool_calls or []):
        assert call.function is not None
        arguments[call.index] += call.function.arguments or ""
    assert arguments == [call["function"]["arguments"] for call in message.get("tool_calls", [])]
    assert [c.choices[0].finish_reason for c in read if c.choices][-1] == whole["choices"][0]["finish_reason"]
    if "stream_options" in fields:
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_completion_and_its_chunks_are_those_of_openai_s_api(llm: LLM) -> None:
    whole = llm.create_completion("import ", echo=True, **GREEDY)
    text = openai.types.Completion.model_validate(whole, strict=True).choices[0].text
    assert text == f"import {llm.generate('import ', max_tokens=20)}"
    chunks = list(llm.create_completion("import ", stream=True, echo=True, **GREEDY))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    of_tokens = llm.create_completion(llm.model.tokenize("import "), **GREEDY)
    assert of_tokens["choices"][0]["text"] == text.removeprefix("import ")


def test_logits_processor_and_none_are_taken(llm: LLM) -> None:
    def forbid(tokens: Any, row: Any) -> None:
        row[::2] = float("-inf")

    answer = llm.create_completion("import ", logits_processor=forbid, stop=None, grammar=None, **GREEDY)
    assert answer["choices"][0]["text"] == llm.generate("import ", max_tokens=20, logits_processor=forbid).text


def test_closed_stream_ends_its_request(llm: LLM) -> None:
    stream = llm.create_chat_completion(HELLO, stream=True, max_tokens=500)
    next(stream)
    stream.close()
    assert llm.figures().running == llm.figures().waiting == 0


@pytest.mark.parametrize("stream", [False, True])
def test_wrong_fields_are_refused_before_anything_runs(llm: LLM, stream: bool) -> None:
    with pytest.raises(TypeError, match=r"create_chat_completion\(\).*'max_token'. Did you mean 'max_tokens'"):
        llm.create_chat_completion(HELLO, max_token=3, stream=stream)
    wrong: list[dict[str, Any]] = [{"min_tokens": 3}, {"temperature": -1}, {"tools": [3]}, {"best_of": 3}]
    wrong += [{"functions": [TOOLS[0]["function"]]}, {"function_call": {"name": "get_weather"}}, {"max_tokens": 0}]
    wrong += [{"function_call": "none", "tools": TOOLS}, {"mirostat_mode": 2}, {"tfs_z": 0.5}]
    wrong += [{"stopping_criteria": [print]}, {"stopping_criteria": np.float32(1)}, {"functions": np.int64(1)}]
    names = (
        "tfs_z",
        "max_tokens",
        "seed",
        "logit_bias",
        "function_call",
        "functions",
        "tools",
        "tool_choice",
        "timeout",
    )
    wrong += [{name: np.ones(2)} for name in names]
    for fields in wrong:
        with pytest.raises(InvalidRequestError, match=min(fields)):
            llm.create_chat_completion(HELLO, stream=stream, **fields)
    of_a_wrong_type: list[dict[str, Any]] = [{"echo": "y"}, {"stream_options": 3}, {"pymtp": [1]}, {"model": 3}]
    of_a_wrong_type += [{"logprobs": "false"}]
    for fields in of_a_wrong_type:
        with pytest.raises(InvalidRequestError, match=f"{min(fields)}=.* must be a"):
            llm.create_chat_completion(HELLO, stream=stream, **fields)
    for name in ("timeout", "timings_per_token", "return_progress"):
        with pytest.raises(InvalidRequestError, match=f"{name}: only `pymtp serve`"):
            llm.create_completion("a", stream=stream, **{name: 1})
    for name in ("max_tokens", "suffix", "grammar", "stream"):
        with pytest.raises(InvalidRequestError, match=f"{name} must not be an array"):
            llm.create_completion("a", **({"stream": stream} | {name: np.zeros(2)}))
    with pytest.raises(InvalidRequestError, match="stream='false' must be a boolean"):
        llm.create_completion("a", stream="false")
    with pytest.raises(ContextFullError):
        llm.create_completion("too long " * 5000, stream=stream)


def test_keywords_of_llama_cpp_python_are_taken_where_they_change_nothing(llm: LLM) -> None:
    neutral = {"tfs_z": 1.0, "mirostat_mode": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "function_call": "none"}
    plain = llm.create_chat_completion(HELLO, **GREEDY)
    same = llm.create_chat_completion(HELLO, **GREEDY, **neutral, stopping_criteria=[], functions=[], typical_p=1.0)
    assert same["choices"] == plain["choices"]
    same = llm.create_chat_completion(HELLO, **GREEDY, logits_processor=[], stopping_criteria=(), tfs_z=np.float64(1))
    assert same["choices"] == plain["choices"]


def test_keyword_of_a_schema_that_is_left_out_is_named_in_the_log(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    items = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2}
    llm.create_chat_completion(HELLO, response_format={"type": "json_object", "schema": items}, **GREEDY)
    assert "create_chat_completion() cannot hold the answer to response_format.schema#/uniqueItems" in caplog.text


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"echo": True, "logprobs": 1}], ids=["silent", "echo", "both"])
def test_completion_of_no_tokens_has_the_prompt_alone(llm: LLM, more: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"max_tokens": 0, "stream_options": {"include_usage": True}, **more}
    whole = llm.create_completion("import os", **fields)
    *chunks, last = llm.create_completion("import os", stream=True, **fields)
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("import os" if more else "", "length")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 0
    if "logprobs" in more:
        assert "".join(choice["logprobs"]["tokens"]) == "import os"


def without_calls(answer: dict[str, Any]) -> list[Any]:
    """Return the choices of an answer, with the calls of tools without their random ids."""
    return json.loads(re.sub(r'"call_[^"]*"', '"call"', json.dumps(answer["choices"])))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("create_completion", {"prompt": "def f(x):", "echo": True, "logprobs": 1, **GREEDY}),
        ("create_completion", {"prompt": "def f(x):", "echo": True, "max_tokens": 0}),
        ("create_chat_completion", {"messages": HELLO, "tools": TOOLS, "tool_choice": "required", **GREEDY}),
    ],
)
def test_async_llm_creates_the_same(llm: LLM, name: str, given: dict[str, Any]) -> None:
    async def created() -> list[Any]:
        async with AsyncLLM(llm) as several:
            whole = await getattr(several, name)(**given)
            chunks = [chunk async for chunk in await getattr(several, name)(**given, stream=True)]
            with pytest.raises(TypeError, match=rf"AsyncLLM.{name}\(\).*'max_token'"):
                await getattr(several, name)(**given, max_token=3)
            with pytest.raises(InvalidRequestError, match="n=2"):
                await getattr(several, name)(**given, n=2, stream=True)
            return [whole, chunks]

    whole, chunks = asyncio.run(created())
    expected = getattr(llm, name)(**given)
    assert without_calls(whole) == without_calls(expected)
    if name == "create_completion":
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected["choices"][0]["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == expected["choices"][0]["finish_reason"]


def test_closed_async_stream_ends_its_request(llm: LLM) -> None:
    async def close_early() -> None:
        async with AsyncLLM(llm) as several:
            stream = await several.create_chat_completion(HELLO, stream=True, max_tokens=500)
            await anext(stream)
            await stream.aclose()
            await several.generate("a", max_tokens=1)  # runs after the end of the other, with one sequence

    asyncio.run(close_early())
    assert llm.figures().running == llm.figures().waiting == 0


@pytest.mark.parametrize("n_top", [0, 2])
def test_echo_has_the_log_probabilities_of_the_prompt_too(llm: LLM, n_top: int) -> None:
    prompt = "def 字(x):"  # a character without a token of its own
    ends = {token: -100.0 for token in range(llm.model.n_vocab) if llm.model.ends_generation(token)}  # have no text
    fields: dict[str, Any] = {"echo": True, "logprobs": n_top, "logit_bias": ends, **GREEDY}
    (choice,) = llm.create_completion(prompt, **fields)["choices"]
    found = choice["logprobs"]
    assert len(found["tokens"]) > GREEDY["max_tokens"]
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert token.startswith("bytes:") or choice["text"].startswith(token, offset)
    assert {r"bytes:\xe5", r"bytes:\xad", r"bytes:\x97"} < {*found["tokens"]}
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)

    done = llm.generate(prompt, logprobs=n_top, prompt_logprobs=n_top, logit_bias=ends, **GREEDY)
    assert done.prompt_logprobs is not None
    assert done.logprobs is not None
    expected = [one for one in [*done.prompt_logprobs, *done.logprobs] if one is not None]
    assert found["token_logprobs"][1:] == [one.logprob for one in expected]
    likeliest = [one.top[0][1] if n_top else None for one in expected]
    assert [max(top.values(), default=None) for top in found["top_logprobs"][1:]] == likeliest

    pieces = [chunk["choices"][0] for chunk in llm.create_completion(prompt, stream=True, **fields)]
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    for name, values in found.items():
        assert [value for piece in pieces for value in (piece["logprobs"] or {name: []})[name]] == values


@pytest.mark.parametrize("as_tokens", [False, True])
def test_echo_counts_the_characters_of_control_tokens(llm: LLM, as_tokens: bool) -> None:
    text = "<|im_start|>user\nhi<|im_end|>"
    prompt = llm.model.tokenize(text) if as_tokens else text
    for stream in (False, True):
        answer = llm.create_completion(prompt, echo=True, logprobs=0, max_tokens=1, temperature=0, stream=stream)
        (choice, *_) = (answer if not stream else next(iter(answer)))["choices"]
        found = choice["logprobs"]
        assert choice["text"].startswith(text)
        assert found["tokens"][0] == "<|im_start|>"
        for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
            assert choice["text"].startswith(token, offset)


def test_stream_of_several_completions_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="n=2"):
        llm.create_chat_completion(HELLO, n=2, stream=True)
    assert len(llm.create_chat_completion(HELLO, n=2, max_tokens=3)["choices"]) == 2
    assert json.dumps(llm.create_completion("import ", n=2, max_tokens=3))
