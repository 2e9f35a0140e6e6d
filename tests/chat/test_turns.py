"""Tests of the prefill of chat turns: only the changed part, whatever the template drops of the past."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.chats import assistant, shared_tokens, user
from makers import chat_templates
from makers.gguf_variants import rewrite
from makers.new_texts import new_prompts

from pymtp import LLM, AsyncLLM, Completion, SamplingParams
from pymtp.chat import Message
from pymtp.engine.request import Waiter

SLACK = 64  # tokens that a turn may prefill again: so few are not worth a checkpoint
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
TEXTS = new_prompts(24, 400)  # 100 to 200 tokens each
SYSTEM: Message = {"role": "system", "content": TEXTS[-1]}

MakeLLM = Callable[..., LLM]


@pytest.fixture
def templated(demo: Path, new_llm: MakeLLM, tmp_path: Path) -> MakeLLM:
    """Make LLMs of the shipped model with one of the templates of makers/chat_templates.py."""

    def make(name: str, **keywords: Any) -> LLM:
        path = tmp_path / f"{name}.gguf"
        if not path.exists():
            rewrite(demo, path, metadata={"tokenizer.chat_template": getattr(chat_templates, name)})
        return new_llm(path, **({"n_ctx": 4096} | keywords))

    return make


def n_prefilled(completion: Completion) -> int:
    return completion.stats.prompt_tokens - completion.stats.cached_tokens


def n_new(completion: Completion, before: Completion) -> int:
    """Count the tokens of a completion's prompt after the beginning that it shares with the earlier prompt."""
    prompt = completion.prompt_token_ids
    return len(prompt) - shared_tokens(prompt, before.prompt_token_ids)


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("name", ["DROPS_THINKING", "KEEPS_THINKING", "OPENS_NOTHING", "PLAIN"])
def test_chat_turn_prefills_only_the_changed_part_and_samples_the_same_text(
    templated: MakeLLM, name: str, thinks: bool
) -> None:
    llm, fresh = templated(name), templated(name, cache_prompt=False)
    messages, before = [SYSTEM], None
    for said, says in zip(TEXTS[:3], TEXTS[5:8], strict=True):
        messages = [*messages, user(said)]
        turn = llm.chat(messages, PARAMS, chat_template_kwargs={"enable_thinking": thinks})
        if before is not None:
            assert n_prefilled(turn) <= n_new(turn, before) + SLACK
        assert turn.token_ids == fresh.generate(turn.prompt_token_ids, PARAMS).token_ids
        messages, before = [*messages, assistant(says, reasoning=turn.text if thinks else "")], turn


def test_chat_with_ten_turns_of_200_tokens_prefills_only_the_changed_parts(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING", n_ctx=8192)
    texts = [llm.model.detokenize(llm.model.tokenize(text)[:200]) for text in new_prompts(20, 900)]
    messages, before = [SYSTEM], None
    for said, says in zip(texts[:10], texts[10:], strict=True):
        messages = [*messages, user(said)]
        turn = llm.chat(messages, PARAMS)
        if before is not None:
            assert n_new(turn, before) > 380
            assert n_prefilled(turn) <= n_new(turn, before) + SLACK
        messages, before = [*messages, assistant(says, reasoning=turn.text)], turn


def test_chat_with_short_turns_prefills_little_of_the_past(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING")
    messages, before = [SYSTEM], None
    for i in range(12):
        messages = [*messages, user(f"And {i}?")]
        turn = llm.chat(messages, SamplingParams(max_tokens=4))
        if before is not None:
            assert n_prefilled(turn) <= n_new(turn, before) + SLACK
        messages, before = [*messages, assistant("Yes." * (i % 4), reasoning=turn.text)], turn


@pytest.mark.parametrize("name", ["DROPS_THINKING", "KEEPS_THINKING", "PLAIN"])
def test_edited_last_question_after_short_turns_prefills_little_of_the_past(templated: MakeLLM, name: str) -> None:
    llm = templated(name)
    messages = [SYSTEM]
    for i in range(12):  # each turn continues the same sequence, and so loses its earlier states
        messages = [*messages, user(f"And {i}?")]
        turn = llm.chat(messages, SamplingParams(max_tokens=8))
        messages = [*messages, assistant(turn.text)]
    edited = llm.chat([*messages[:-2], user("Else?")], SamplingParams(max_tokens=8))
    assert n_prefilled(edited) <= n_new(edited, turn) + SLACK


def test_edited_last_question_and_its_repetition_prefill_only_the_question(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING")
    messages = [user(TEXTS[0]), assistant(TEXTS[1])]  # shorter than n_ubatch, where prompts have checkpoints anyway
    first = llm.chat([*messages, user(TEXTS[2])], PARAMS)
    edited = llm.chat([*messages, user(TEXTS[3])], PARAMS)
    assert n_prefilled(edited) <= n_new(edited, first) + SLACK
    again = llm.chat([*messages, user(TEXTS[3])], PARAMS)
    assert n_prefilled(again) <= SLACK
    assert again.token_ids == edited.token_ids


def test_chats_share_the_cached_system_message_and_keep_their_own_turns(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING")
    first = llm.chat([SYSTEM, user(TEXTS[0])], PARAMS)
    second = llm.chat([SYSTEM, user(TEXTS[1])], PARAMS)
    assert n_prefilled(second) <= n_new(second, first) + SLACK
    for said, before in ((TEXTS[0], first), (TEXTS[1], second)):
        turn = llm.chat([SYSTEM, user(said), assistant(TEXTS[2]), user(TEXTS[3])], PARAMS)
        assert n_prefilled(turn) <= n_new(turn, before) + SLACK


def test_chat_with_tool_calls_prefills_only_the_changed_parts(templated: MakeLLM) -> None:
    llm, tools = templated("DROPS_THINKING"), [{"type": "function", "function": {"name": "look"}}]
    messages, before = [SYSTEM, user(TEXTS[0])], llm.chat([SYSTEM, user(TEXTS[0])], PARAMS, tools=tools)
    for more in ({"role": "tool", "content": TEXTS[1]}, {"role": "tool", "content": TEXTS[2]}, user(TEXTS[3])):
        messages = [*messages, assistant("look()", reasoning=before.text), more]
        turn = llm.chat(messages, PARAMS, tools=tools)
        assert n_prefilled(turn) <= n_new(turn, before) + SLACK
        before = turn


def test_prompt_that_shares_no_prefix_with_the_cache_is_answered_correctly(templated: MakeLLM) -> None:
    llm, fresh = templated("DATED"), templated("DATED", cache_prompt=False)
    messages = [SYSTEM]
    for said in TEXTS[:3]:
        messages = [*messages, user(said)]
        turn = llm.chat(messages, PARAMS)
        assert turn.stats.cached_tokens < SLACK
        assert turn.token_ids == fresh.generate(turn.prompt_token_ids, PARAMS).token_ids
        messages = [*messages, assistant(TEXTS[5], reasoning=turn.text)]


def test_coroutine_reuses_the_cache_after_a_stream(templated: MakeLLM) -> None:
    llm = templated("DROPS_THINKING")
    messages = [SYSTEM, user(TEXTS[0])]
    with llm.stream_chat(messages, PARAMS) as stream:
        assert sum(len(piece.token_ids) for piece in stream) == 24
    later = [*messages, assistant(TEXTS[1]), user(TEXTS[2])]

    async def ask() -> Completion:
        async with AsyncLLM(llm) as made:
            return await made.chat(later, PARAMS, chat_template_kwargs={"enable_thinking": False})

    turn = asyncio.run(ask())
    assert n_prefilled(turn) <= n_new(turn, stream.completion) + SLACK


def test_requests_of_chats_have_the_branch_points_of_their_prompts(new_llm: MakeLLM) -> None:
    llm, waiter = new_llm(), Waiter()
    requests = llm._submit([[7] * 9, [8] * 9], PARAMS, waiter, branch_points=[(3,), (5, 6)])
    assert [request.branch_points for request in requests] == [(3,), (5, 6)]
