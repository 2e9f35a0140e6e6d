"""Claims about what a model makes of what a client asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from makers.chat_templates import DROPS_THINKING
from makers.gguf_variants import rewrite

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.chat import Chat, Tool
from pymtp.chat.prompt import ChatPrompt
from pymtp.openai.generate_request import Ask, prepared, read

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello."}]
EMPTY: dict[str, Any] = {"role": "user", "content": ""}


def text_of(llm: LLM, ask: Ask) -> str:
    prompt = prepared(llm, ask).prompt
    assert isinstance(prompt, ChatPrompt)
    return llm.model.detokenize(prompt.tokens)


@pytest.mark.parametrize(
    ("begun", "end"),
    [
        ({"content": "The sky"}, "assistant\n<think>\n\n</think>\n\nThe sky"),
        ({"content": "The sky", "reasoning_content": "blue?"}, "assistant\n<think>\nblue?\n</think>\n\nThe sky"),
        ({"content": [{"type": "text", "text": "The"}]}, "assistant\n<think>\n\n</think>\n\nThe"),
        ({"content": "a\ud83d", "reasoning_content": "\ude00"}, "assistant\n<think>\n\ufffd\n</think>\n\na\ufffd"),
    ],
)
def test_an_answer_that_has_begun_goes_on_behind_the_thinking(
    new_llm: Callable[..., LLM], demo: Path, tmp_path: Path, begun: dict[str, Any], end: str
) -> None:
    path = tmp_path / "thinker.gguf"
    rewrite(demo, path, metadata={"tokenizer.chat_template": DROPS_THINKING})
    llm = new_llm(path)
    ask = Ask(Chat([*HELLO, {"role": "assistant", **begun}]), SamplingParams(), continues=True)
    assert text_of(llm, ask).endswith(end)


def test_an_answer_without_a_question_goes_on_behind_an_empty_one(llm: LLM) -> None:
    begun = {"role": "assistant", "content": "The sky"}
    asks = [Ask(Chat(messages), SamplingParams(), continues=True) for messages in ([begun], [EMPTY, begun])]
    assert text_of(llm, asks[0]) == text_of(llm, asks[1])


@pytest.mark.parametrize("messages", [[], HELLO])
def test_only_an_answer_can_be_gone_on_with(llm: LLM, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequestError, match="gone on with"):
        prepared(llm, Ask(Chat(messages), SamplingParams(), continues=True))


@pytest.mark.parametrize(
    ("template", "call"), [("<tool_call>{}", '{"name": '), ("<tool_call><function=", "<function=f>")]
)
def test_calls_are_written_as_a_template_that_is_given_has_them(
    new_llm: Callable[..., LLM], template: str, call: str
) -> None:
    llm = new_llm(chat_template=template + "{{ messages[0].content }}")
    ask = Ask(Chat(HELLO), SamplingParams(64), tools=[Tool("f")], tool_choice="required")
    prompt, params, _ = prepared(llm, ask)
    assert call in llm.generate(prompt, params).text


def test_a_grammar_does_not_stand_beside_a_schema(llm: LLM) -> None:
    ask = Ask(Chat(HELLO), SamplingParams(grammar='root ::= "a"'), schema={"type": "integer"})
    with pytest.raises(InvalidRequestError, match="cannot stand beside"):
        prepared(llm, ask)


def test_all_texts_of_a_prompt_are_read(llm: LLM) -> None:
    ask = Ask(Chat(HELLO), SamplingParams(8, n=3, temperature=0.9), schema={"type": "integer"})
    prompt, params, form = prepared(llm, ask)
    texts = read(form, llm.generate(prompt, params))
    assert len(texts) == 3
    for text in texts:
        assert text.answer is not None
        assert int(text.answer.content or "") == int(text.completion.text)
