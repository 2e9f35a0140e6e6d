"""Tests with OpenAI's own client and a listening server: completions equal the completions of the LLM."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.late import openai
from helpers.servers import LONG, Server

from pymtp import SamplingParams

QUESTION = "Write a Python function to return the n-th Fibonacci number. Call it fibonacci."  # a long answer
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
STORY: Any = [{"role": "user", "content": "Tell a story about the fox Ada and Tom in Rome."}]  # has many answers
GRAMMAR = r'root ::= "\n</think>\n\n" [a-f]+'
GREEDY: Any = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=LONG) as client:
        yield client


def expected(server: Server, messages: Any = MESSAGES, **params: Any) -> str:
    return server.llm.chat(messages, SamplingParams(**({"max_tokens": 24} | params))).content


def joined(chunks: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_chat_completion_has_the_same_text_as_the_llm(server: Server, client: openai.OpenAI) -> None:
    done = client.chat.completions.create(**GREEDY)
    (choice,) = done.choices
    assert choice.message.content == expected(server)
    assert (choice.message.role, choice.finish_reason, done.model) == ("assistant", "length", "demo")


def test_stream_joins_to_the_text_of_the_llm_with_one_finish_reason(server: Server, client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(**GREEDY, stream=True))
    assert joined(chunks) == expected(server)
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_counts_prompt_and_completion_tokens(server: Server, client: openai.OpenAI) -> None:
    done = server.llm.chat(MESSAGES, SamplingParams(max_tokens=24))
    numbers = (len(done.prompt_token_ids), len(done.token_ids), len(done.prompt_token_ids) + len(done.token_ids))
    whole = client.chat.completions.create(**GREEDY).usage
    assert whole is not None
    assert (whole.prompt_tokens, whole.completion_tokens, whole.total_tokens) == numbers
    *chunks, last = client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == numbers
    assert {chunk.usage for chunk in chunks} == {None}


def test_usage_has_the_cached_tokens(client: openai.OpenAI) -> None:
    request_body = GREEDY | {"messages": [{"role": "user", "content": "x = 1\n" * 200}]}
    cached = []
    for _ in range(3):
        usage = client.chat.completions.create(**request_body).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens or 0)
    assert cached[0] < 10
    assert cached[2] > 300


@pytest.mark.parametrize("stream", [False, True])
def test_seed_gives_the_same_text_as_the_llm(server: Server, client: openai.OpenAI, stream: bool) -> None:
    sampled = GREEDY | {"messages": STORY, "temperature": 0.8, "seed": 11}
    if stream:
        text = joined(list(client.chat.completions.create(**sampled, stream=True)))
    else:
        text = client.chat.completions.create(**sampled).choices[0].message.content or ""
    params = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert text == expected(server, STORY, seed=11, **params)
    assert text not in (expected(server, STORY), expected(server, STORY, seed=12, **params))


@pytest.mark.parametrize("stream", [False, True])
def test_n_completions_have_consecutive_seeds(server: Server, client: openai.OpenAI, stream: bool) -> None:
    sampled = GREEDY | {"messages": STORY, "temperature": 0.9, "seed": 5, "n": 3}
    if stream:
        chunks = list(client.chat.completions.create(**sampled, stream=True))
        texts = [joined(chunks, i) for i in range(3)]
        ends = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert sorted(ends) == [0, 1, 2]
    else:
        texts = [choice.message.content or "" for choice in client.chat.completions.create(**sampled).choices]
    expected_value = {"temperature": 0.9, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert texts == [expected(server, STORY, seed=5 + i, **expected_value) for i in range(3)]
    assert len(set(texts)) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_text_and_is_excluded(server: Server, client: openai.OpenAI, stream: bool) -> None:
    whole = expected(server)
    stop = whole[10:14]
    stopped = GREEDY | {"stop": ["never there", stop]}
    if stream:
        chunks = list(client.chat.completions.create(**stopped, stream=True))
        text, reason = joined(chunks), chunks[-1].choices[0].finish_reason
    else:
        (choice,) = client.chat.completions.create(**stopped).choices
        text, reason = choice.message.content or "", choice.finish_reason
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_response_logprobs_equal_the_logprobs_of_the_llm(server: Server, client: openai.OpenAI, stream: bool) -> None:
    request_body = GREEDY | {"logprobs": True, "top_logprobs": 3}
    if stream:
        chunks = list(client.chat.completions.create(**request_body, stream=True))
        each = [one for chunk in chunks for c in chunk.choices if c.logprobs for one in c.logprobs.content or ()]
    else:
        logprobs = client.chat.completions.create(**request_body).choices[0].logprobs
        assert logprobs is not None
        each = list(logprobs.content or ())
    done = server.llm.chat(MESSAGES, SamplingParams(max_tokens=24, logprobs=3))
    assert done.logprobs is not None
    assert [one.logprob for one in each] == pytest.approx([one.logprob for one in done.logprobs])
    assert bytes(byte for one in each for byte in one.bytes or ()).decode() == done.text
    assert {len(one.top_logprobs) for one in each} == {3}
    # Greedy sampling takes the most probable token.
    assert all(one.top_logprobs[0].logprob == one.logprob for one in each)


def test_logit_bias_excludes_a_token(server: Server, client: openai.OpenAI) -> None:
    first = server.llm.chat(MESSAGES, SamplingParams(max_tokens=1)).token_ids[0]
    other = client.chat.completions.create(**GREEDY, logit_bias={str(first): -100})
    assert other.choices[0].message.content == expected(server, logit_bias={first: -100.0})
    assert other.choices[0].message.content != expected(server)


def test_penalties_give_the_same_text_as_the_llm(server: Server, client: openai.OpenAI) -> None:
    request_body = client.chat.completions.create(
        **GREEDY, frequency_penalty=1.5, presence_penalty=0.5, extra_body={"repeat_penalty": 1.3, "repeat_last_n": 32}
    )
    params = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3, "penalty_last_n": 32}
    assert request_body.choices[0].message.content == expected(server, **params)


def test_llama_cpp_extensions_give_the_same_text_as_the_llm(server: Server, client: openai.OpenAI) -> None:
    extra = {"top_k": 3, "min_p": 0.1, "grammar": GRAMMAR, "draft_tokens": 0}
    request_body = client.chat.completions.create(**GREEDY | {"temperature": 1.0, "seed": 3}, extra_body=extra)
    params = {"temperature": 1.0, "seed": 3, "top_p": 1.0, "top_k": 3, "min_p": 0.1, "grammar": GRAMMAR}
    text = request_body.choices[0].message.content
    assert text == expected(server, **params)
    assert text
    assert set(text) <= set("abcdef")


def test_last_chunk_has_the_draft_stats(server: Server, client: openai.OpenAI) -> None:
    drafting = client.chat.completions.create(**GREEDY).model_extra["pymtp"]  # type: ignore[index]
    done = server.llm.chat(MESSAGES, SamplingParams(max_tokens=24)).stats
    assert (drafting["drafted"], drafting["accepted"], drafting["rounds"]) == (done.drafted, done.accepted, done.rounds)
    assert drafting["accepted_per_position"] == list(done.accepted_per_position)
    assert drafting["depths"] == list(done.depths)
    assert drafting["decode_seconds"] > 0
    *before, last = client.chat.completions.create(**GREEDY, stream=True)
    assert last.model_extra["pymtp"]["drafted"] == done.drafted  # type: ignore[index]
    assert not any("pymtp" in (chunk.model_extra or {}) for chunk in before)
    without = client.chat.completions.create(**GREEDY, extra_body={"draft_tokens": 0})
    assert without.choices[0].message.content == expected(server)
    assert without.model_extra["pymtp"]["drafted"] == 0  # type: ignore[index]


def test_origins_cover_each_character(server: Server, client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(**GREEDY, stream=True, extra_body={"pymtp": {"origins": True}}))
    reported = [
        (chunk.choices[0].delta.content, chunk.model_extra["pymtp"]) for chunk in chunks[:-1] if chunk.model_extra
    ]
    reported = [(text, each) for text, each in reported if "origins" in each]
    for text, each in reported:
        assert sum(n for _, n, _ in each["origins"]) == len(text or "")
        assert {field for field, _, _ in each["origins"]} <= {"content"}
    done = server.llm.chat(MESSAGES, SamplingParams(max_tokens=24)).stats
    rounds = [one for _, each in reported for one in each["rounds"]]
    assert [sum(each) for each in zip(*rounds, strict=True)] == [done.drafted, done.accepted, 0, 0]
    steps = {step for _, each in reported for _, _, step in each["origins"]}
    assert 0 in steps
    assert steps <= {0, 1, 2, 3}
    assert len(steps) > 1


def test_continue_final_message_continues_the_last_message(server: Server, client: openai.OpenAI) -> None:
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "```python\ndef fib"}]
    request_body = client.chat.completions.create(
        **GREEDY | {"messages": begun}, extra_body={"continue_final_message": True}
    )
    text = server.llm.chat_template.render(MESSAGES) + "```python\ndef fib"
    assert request_body.choices[0].message.content == server.llm.generate(text, SamplingParams(max_tokens=24)).text


def test_completions_continue_prompts_of_text_and_of_tokens(server: Server, client: openai.OpenAI) -> None:
    request_body: Any = {"model": "demo", "temperature": 0, "max_tokens": 12, "echo": True}
    expected_value = ["import os" + server.llm.generate("import os", SamplingParams(max_tokens=12)).text]
    expected_value += ["def " + server.llm.generate("def ", SamplingParams(max_tokens=12)).text]
    done = client.completions.create(prompt=["import os", "def "], **request_body)
    assert [choice.text for choice in done.choices] == expected_value
    tokens = server.llm.model.tokenize("import os")
    assert client.completions.create(prompt=tokens, **request_body).choices[0].text == expected_value[0]
    texts = ["", "", "", ""]
    for chunk in client.completions.create(prompt=["import os", "def "], n=2, stream=True, **request_body):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [expected_value[0], expected_value[0], expected_value[1], expected_value[1]]


def test_completions_of_no_tokens_have_the_prompt_alone(server: Server, client: openai.OpenAI) -> None:
    prompts = ["import os", "def "]
    request_body: Any = {"model": "demo", "prompt": prompts, "max_tokens": 0, "n": 2}
    done = client.completions.create(**request_body, echo=True)
    texts, chunks = ["", "", "", ""], list(client.completions.create(**request_body, echo=True, stream=True))
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.text
    assert texts == [choice.text for choice in done.choices] == [prompts[0], prompts[0], prompts[1], prompts[1]]
    assert {choice.finish_reason for choice in done.choices} == {"length"}
    n_prompt = sum(len(server.llm.model.tokenize(prompt)) for prompt in prompts)
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (n_prompt, 0)
    (silent, *_) = client.completions.create(**request_body, logprobs=1).choices
    assert silent.logprobs is not None
    assert (silent.text, silent.logprobs.tokens) == ("", [])


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_echo_of_several_prompts_has_their_log_probabilities(
    server: Server, client: openai.OpenAI, max_tokens: int
) -> None:
    prompts = ["import os", "def f(x):"]
    request_body: Any = {"model": "demo", "prompt": prompts, "max_tokens": max_tokens, "n": 2, "temperature": 0}
    request_body |= {"echo": True, "logprobs": 1, "extra_body": {"ignore_eos": True}}
    choices = client.completions.create(**request_body).choices
    params = SamplingParams(max_tokens=2, logprobs=1, prompt_logprobs=1, ignore_eos=True)
    for choice, prompt in zip(choices, [prompts[0], prompts[0], prompts[1], prompts[1]], strict=True):
        done = server.llm.generate(prompt, params)
        assert done.prompt_logprobs is not None
        assert done.logprobs is not None
        known = [one for one in done.prompt_logprobs[1:] if one is not None] + done.logprobs[:max_tokens]
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == [None, *[one.logprob for one in known]]
        assert "".join(choice.logprobs.tokens or []) == choice.text
    values: list[list[float | None]] = [[], [], [], []]
    for part in (part for chunk in client.completions.create(**request_body, stream=True) for part in chunk.choices):
        values[part.index] += part.logprobs.token_logprobs if part.logprobs else []  # type: ignore[arg-type]
    assert values == [choice.logprobs and choice.logprobs.token_logprobs for choice in choices]


def test_completion_logprobs_have_text_offsets(server: Server, client: openai.OpenAI) -> None:
    prompt = '"""Helpers for lists."""\n\n\n'
    request_body: Any = {"model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 48, "logprobs": 2}
    (choice,) = client.completions.create(**request_body).choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or ()) == choice.text
    offsets = zip(logprobs.tokens or (), logprobs.text_offset or (), strict=True)
    starts = [choice.text.index(token, start) for token, start in offsets]
    assert starts == logprobs.text_offset
    streamed = [
        c for chunk in client.completions.create(**request_body, stream=True) for c in chunk.choices if c.logprobs
    ]
    assert [at for c in streamed if c.logprobs for at in c.logprobs.text_offset or ()] == logprobs.text_offset


def test_models_route_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").object == "model"


def test_concurrent_streams_have_the_same_texts_as_the_llm(server: Server) -> None:
    prompts = ["import ", "def main", "class A", "for i in", "while ", "return x"]

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, timeout=LONG) as client:

            async def one(prompt: str) -> str:
                text = ""
                async for chunk in await client.completions.create(
                    model="demo", prompt=prompt, temperature=0, max_tokens=16, stream=True
                ):
                    text += chunk.choices[0].text
                return text

            return await asyncio.gather(*(one(prompt) for prompt in prompts))

    expected_value = server.llm.generate(prompts, SamplingParams(max_tokens=16))
    assert asyncio.run(main()) == [done.text for done in expected_value]
