"""Claims about what the turns of a chat read: what changed, whatever the template drops of the past."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.chats import answered, parting, user
from makers import chat_templates
from makers.demo_corpus import held_out_prompts
from makers.gguf_variants import rewrite

from pymtp import LLM, AsyncLLM, Completion, SamplingParams
from pymtp.chat import Message
from pymtp.engine.request import Caller

SLACK = 64  # tokens: fewer do not pay a checkpoint
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
TEXTS = held_out_prompts(24, 400)  # of 100 to 200 tokens
SYSTEM: Message = {"role": "system", "content": TEXTS[-1]}

MakeLLM = Callable[..., LLM]


@pytest.fixture
def templated(demo: Path, new_llm: MakeLLM, tmp_path: Path) -> MakeLLM:
    """LLMs of the shipped model with one of the templates of makers/chat_templates.py."""

    def make(name: str, **keywords: Any) -> LLM:
        path = tmp_path / f"{name}.gguf"
        if not path.exists():
            rewrite(demo, path, metadata={"tokenizer.chat_template": getattr(chat_templates, name)})
        return new_llm(path, n_ctx=16384, **keywords)

    return make


def n_read(completion: Completion) -> int:
    return completion.stats.prompt_tokens - completion.stats.cached_tokens


def n_new(completion: Completion, before: Completion) -> int:
    """Tokens of its prompt that the other's did not begin with."""
    prompt = completion.prompt_token_ids
    return len(prompt) - parting(prompt, before.prompt_token_ids)


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("name", ["DROPS_THINKING", "KEEPS_THINKING", "OPENS_NOTHING", "PLAIN"])
def test_a_turn_reads_what_changed_and_writes_the_same(templated: MakeLLM, name: str, thinks: bool) -> None:
    llm, fresh = templated(name), templated(name, cache_prompt=False)
    messages, before = [SYSTEM], None
    for said, says in zip(TEXTS[:5], TEXTS[5:10], strict=True):
        messages = [*messages, user(said)]
        turn = llm.chat(messages, PARAMS, chat_template_kwargs={"enable_thinking": thinks})
        if before is not None:
            assert n_read(turn) <= n_new(turn, before) + SLACK
        assert turn.token_ids == fresh.generate(turn.prompt_token_ids, PARAMS).token_ids
        messages, before = [*messages, answered(says, thought=turn.text if thinks else "")], turn


def test_twenty_turns_of_200_tokens_read_what_changed(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING")
    texts = [llm.model.detokenize(llm.model.tokenize(text)[:200]) for text in held_out_prompts(40, 900)]
    messages, before = [SYSTEM], None
    for said, says in zip(texts[:20], texts[20:], strict=True):
        messages = [*messages, user(said)]
        turn = llm.chat(messages, PARAMS)
        if before is not None:
            assert n_new(turn, before) > 380
            assert n_read(turn) <= n_new(turn, before) + SLACK
        messages, before = [*messages, answered(says, thought=turn.text)], turn


def test_short_turns_read_little_of_the_past(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING")
    messages, before = [SYSTEM], None
    for i in range(12):
        messages = [*messages, user(f"And {i}?")]
        turn = llm.chat(messages, SamplingParams(max_tokens=4))
        if before is not None:
            assert n_read(turn) <= n_new(turn, before) + SLACK
        messages, before = [*messages, answered("Yes." * (i % 4), thought=turn.text)], turn


@pytest.mark.parametrize("name", ["DROPS_THINKING", "KEEPS_THINKING", "PLAIN"])
def test_after_short_turns_another_last_question_reads_little_of_the_past(templated: MakeLLM, name: str) -> None:
    llm = templated(name)
    messages = [SYSTEM]
    for i in range(12):  # each goes on from what its sequence holds, which is gone then
        messages = [*messages, user(f"And {i}?")]
        turn = llm.chat(messages, SamplingParams(max_tokens=8))
        messages = [*messages, answered(turn.text)]
    edited = llm.chat([*messages[:-2], user("Else?")], SamplingParams(max_tokens=8))
    assert n_read(edited) <= n_new(edited, turn) + SLACK


def test_another_last_question_and_the_same_once_more_read_no_more_than_that(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING")
    messages = [user(TEXTS[0]), answered(TEXTS[1])]  # short of n_ubatch, where prompts stop anyway
    first = llm.chat([*messages, user(TEXTS[2])], PARAMS)
    edited = llm.chat([*messages, user(TEXTS[3])], PARAMS)
    assert n_read(edited) <= n_new(edited, first) + SLACK
    again = llm.chat([*messages, user(TEXTS[3])], PARAMS)
    assert n_read(again) <= SLACK
    assert again.token_ids == edited.token_ids


def test_chats_with_one_system_message_read_it_once_and_their_turns_for_themselves(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING")
    first = llm.chat([SYSTEM, user(TEXTS[0])], PARAMS)
    second = llm.chat([SYSTEM, user(TEXTS[1])], PARAMS)
    assert n_read(second) <= n_new(second, first) + SLACK
    for said, before in ((TEXTS[0], first), (TEXTS[1], second)):
        turn = llm.chat([SYSTEM, user(said), answered(TEXTS[2]), user(TEXTS[3])], PARAMS)
        assert n_read(turn) <= n_new(turn, before) + SLACK


def test_calls_of_tools_read_what_changed(templated: MakeLLM) -> None:
    llm, tools = templated("DROPS_THINKING"), [{"type": "function", "function": {"name": "look"}}]
    messages, before = [SYSTEM, user(TEXTS[0])], llm.chat([SYSTEM, user(TEXTS[0])], PARAMS, tools=tools)
    for more in ({"role": "tool", "content": TEXTS[1]}, {"role": "tool", "content": TEXTS[2]}, user(TEXTS[3])):
        messages = [*messages, answered("look()", thought=before.text), more]
        turn = llm.chat(messages, PARAMS, tools=tools)
        assert n_read(turn) <= n_new(turn, before) + SLACK
        before = turn


def test_a_prompt_that_never_begins_as_an_earlier_one_is_answered_right(templated: MakeLLM) -> None:
    llm, fresh = templated("DATED"), templated("DATED", cache_prompt=False)
    messages = [SYSTEM]
    for said in TEXTS[:3]:
        messages = [*messages, user(said)]
        turn = llm.chat(messages, PARAMS)
        assert turn.stats.cached_tokens < SLACK
        assert turn.token_ids == fresh.generate(turn.prompt_token_ids, PARAMS).token_ids
        messages = [*messages, answered(TEXTS[5], thought=turn.text)]


def test_streams_and_coroutines_read_as_little(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING")
    messages = [SYSTEM, user(TEXTS[0])]
    with llm.stream_chat(messages, PARAMS) as stream:
        assert sum(len(piece.token_ids) for piece in stream) == 24
    later = [*messages, answered(TEXTS[1]), user(TEXTS[2])]

    async def ask() -> Completion:
        async with AsyncLLM(llm) as made:
            return await made.chat(later, PARAMS, chat_template_kwargs={"enable_thinking": False})

    turn = asyncio.run(ask())
    assert n_read(turn) <= n_new(turn, stream.completion) + SLACK


def test_marks_that_are_given_reach_the_engine(new_llm: MakeLLM) -> None:
    llm, caller = new_llm(), Caller()
    requests = llm.requests([[7] * 9, [8] * 9], PARAMS, caller, marks=[(3,), (5, 6)])
    assert [request.marks for request in requests] == [(3,), (5, 6)]
