"""Tests of ChatTemplate: the file's own template, the sandbox, and error messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from makers.chat_templates import DROPS_THINKING
from makers.gguf_variants import rewrite

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.chat import ChatTemplate, assistant_message
from pymtp.model.model import Model

KEY = "tokenizer.chat_template"


def template_of(demo: Path, tmp_path: Path, source: str | None) -> ChatTemplate:
    path = tmp_path / "model.gguf"
    rewrite(demo, path, metadata={KEY: source})
    return ChatTemplate(Model(path, vocab_only=True))


def test_template_renders_the_prompt_that_the_model_was_trained_on() -> None:
    template = ChatTemplate(Model(vocab_only=True))
    prompt = template.render([{"role": "user", "content": "Hi"}])
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_chat_and_stream_chat_give_the_same_text(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Write a function first: Return the first item."}]
    answer = llm.chat(messages, SamplingParams(max_tokens=40))
    assert answer.text
    with llm.stream_chat(messages, SamplingParams(max_tokens=40)) as stream:
        assert "".join(piece.text for piece in stream) == answer.text
    follow_up = [*messages, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "Again."}]
    assert llm.chat(follow_up, SamplingParams(max_tokens=5)).token_ids


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"],
    ids=["classes", "mutation", "globals"],
)
def test_template_cannot_leave_the_sandbox(demo: Path, tmp_path: Path, source: str) -> None:
    with pytest.raises(InvalidRequestError, match="refuses"):
        template_of(demo, tmp_path, source).render([{"role": "user", "content": "Hi"}])


def test_error_contains_the_message_that_the_template_raises(demo: Path, tmp_path: Path) -> None:
    template = template_of(demo, tmp_path, "{{ raise_exception('no system here') }}")
    with pytest.raises(InvalidRequestError, match="no system here"):
        template.render([{"role": "system", "content": "x"}])


def test_template_features_of_transformers_render(demo: Path, tmp_path: Path) -> None:
    source = (
        "{%- for m in messages %}{%- if m.role == 'skip' %}{%- continue %}{%- endif %}{{ m.content | tojson }}"
        "{{ eos_token }}{%- endfor %}{{ strftime_now('%Y') | length }}"
    )
    rendered = template_of(demo, tmp_path, source).render(
        [{"role": "skip", "content": "a"}, {"role": "user", "content": "é<"}]
    )
    assert rendered == '"é<"<|im_end|>4'


def test_template_gets_the_date_as_from_llama_cpp(demo: Path, tmp_path: Path) -> None:
    template = template_of(demo, tmp_path, "{{ date_string }}, {{ datetime }}")
    days = [datetime.now()]
    rendered = template.render([{"role": "user", "content": "a"}])
    days.append(datetime.now())
    assert rendered in [day.strftime("%d %b %Y, %b %d %Y") for day in days]
    own = {"date_string": "a", "datetime": "b"}
    assert template.render([{"role": "user", "content": "a"}], chat_template_kwargs=own) == "a, b"


def test_file_without_a_template_or_with_a_broken_one_is_refused(demo: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="has no chat template"):
        template_of(demo, tmp_path, None)
    with pytest.raises(InvalidRequestError, match="broken chat template"):
        template_of(demo, tmp_path, "{% if %}")


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"content": "x"}], ["Hi"]], ids=str)
def test_incomplete_messages_are_refused(new_llm: Callable[..., LLM], messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match="message"):
        new_llm().chat(messages)


@pytest.mark.parametrize("messages", [None, 3, iter([{"role": "user", "content": "Hi"}])], ids=["None", "3", "iter"])
def test_chat_refuses_anything_but_a_sequence_of_messages(new_llm: Callable[..., LLM], messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match="sequence of messages"):
        new_llm().chat(messages)


def test_tools_and_further_variables_reach_the_template(demo: Path, tmp_path: Path) -> None:
    template = template_of(demo, tmp_path, DROPS_THINKING)
    messages = [{"role": "user", "content": "Hi"}]
    assert template.render(messages).endswith("<|im_start|>assistant\n<think>\n")
    thinks_not = template.render(messages, chat_template_kwargs={"enable_thinking": False})
    assert thinks_not.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    tools = [{"name": "look", "for": "é"}]
    assert template.render(messages, tools=tools).startswith('<|im_start|>system\n{"name": "look", "for": "é"}\n')


@pytest.mark.parametrize("variables", [{"messages": []}, {"add_generation_prompt": False}, {1: 2}, "thinking"], ids=str)
def test_reserved_variables_are_refused(new_llm: Callable[..., LLM], variables: Any) -> None:
    with pytest.raises(InvalidRequestError, match="chat_template_kwargs"):
        new_llm().chat([{"role": "user", "content": "Hi"}], chat_template_kwargs=variables)


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        ("assistant\n<think>\n", "So.\n</think>\n\nYes.", "So.", "Yes."),
        ("assistant\n", "<think>\nSo.\n</think>\n\nYes.", "So.", "Yes."),
        ("assistant\n<think>\n", "So", "So", ""),  # cut off by max_tokens
        ("assistant\n<think>\n\n</think>\n\n", "Yes.", None, "Yes."),
        ("assistant\n", "Say </think>.", None, "Say </think>."),
    ],
)
def test_assistant_message_separates_the_reasoning(prompt: str, text: str, reasoning: str | None, content: str) -> None:
    message = assistant_message(text, prompt)
    assert (message["role"], message.get("reasoning_content"), message["content"]) == ("assistant", reasoning, content)


def test_separated_reasoning_returns_to_the_prompt_for_a_tool_result(demo: Path, tmp_path: Path) -> None:
    template = template_of(demo, tmp_path, DROPS_THINKING)
    messages = [{"role": "user", "content": "Hi"}]
    prompt = template.render(messages)
    text = "So.\n</think>\n\nlook()"
    later = [*messages, assistant_message(text, prompt), {"role": "tool", "content": "A file."}]
    assert template.render(later).startswith(f"{prompt}{text}<|im_end|>\n<|im_start|>tool\n")
