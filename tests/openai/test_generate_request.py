"""Tests of prepare_request and parse_outputs: prompts and grammars of requests, and their outputs."""

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
from pymtp.openai.generate_request import GenerateRequest, parse_outputs, prepare_request

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello."}]
EMPTY: dict[str, Any] = {"role": "user", "content": ""}


def prompt_text(llm: LLM, request: GenerateRequest) -> str:
    prompt = prepare_request(llm, request).prompt
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
def test_final_message_is_continued_after_the_thinking(
    new_llm: Callable[..., LLM], demo: Path, tmp_path: Path, begun: dict[str, Any], end: str
) -> None:
    path = tmp_path / "thinker.gguf"
    rewrite(demo, path, metadata={"tokenizer.chat_template": DROPS_THINKING})
    llm = new_llm(path)
    request = GenerateRequest(
        Chat([*HELLO, {"role": "assistant", **begun}]), SamplingParams(), continue_final_message=True
    )
    assert prompt_text(llm, request).endswith(end)


def test_final_message_without_a_user_message_is_continued_after_an_empty_user_message(llm: LLM) -> None:
    begun = {"role": "assistant", "content": "The sky"}
    requests = [
        GenerateRequest(Chat(messages), SamplingParams(), continue_final_message=True)
        for messages in ([begun], [EMPTY, begun])
    ]
    assert prompt_text(llm, requests[0]) == prompt_text(llm, requests[1])


@pytest.mark.parametrize("messages", [[], HELLO])
def test_only_an_assistant_message_can_be_continued(llm: LLM, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequestError, match="last message must be text of the assistant"):
        prepare_request(llm, GenerateRequest(Chat(messages), SamplingParams(), continue_final_message=True))


@pytest.mark.parametrize(
    ("template", "call"), [("<tool_call>{}", '{"name": '), ("<tool_call><function=", "<function=f>")]
)
def test_tool_calls_have_the_form_of_the_given_template(new_llm: Callable[..., LLM], template: str, call: str) -> None:
    llm = new_llm(chat_template=template + "{{ messages[0].content }}")
    request = GenerateRequest(Chat(HELLO), SamplingParams(64), tools=[Tool("f")], tool_choice="required")
    prompt, params, _ = prepare_request(llm, request)
    assert call in llm.generate(prompt, params).text


def test_grammar_beside_a_schema_is_refused(llm: LLM) -> None:
    request = GenerateRequest(Chat(HELLO), SamplingParams(grammar='root ::= "a"'), schema={"type": "integer"})
    with pytest.raises(InvalidRequestError, match="cannot be combined"):
        prepare_request(llm, request)


def test_all_completions_of_a_prompt_are_parsed(llm: LLM) -> None:
    chat = Chat(HELLO, chat_template_kwargs={"enable_thinking": False})
    request = GenerateRequest(chat, SamplingParams(8, n=3, temperature=0.9), schema={"type": "integer"})
    prompt, params, output_format = prepare_request(llm, request)
    outputs = parse_outputs(output_format, llm.generate(prompt, params))
    assert len(outputs) == 3
    for output in outputs:
        assert output.parsed is not None
        assert int(output.parsed.content or "") == int(output.completion.text)
