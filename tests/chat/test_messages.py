"""Tests of template_messages: messages in OpenAI's form become those that templates expect."""

from __future__ import annotations

from typing import Any

import pytest

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.chat import template_messages
from pymtp.chat.messages import WHOLE_ARGUMENTS, past_arguments

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}


def test_messages_with_string_content_stay_as_they_are() -> None:
    messages = [
        {"role": "system", "content": "s"},
        USER,
        {"role": "tool", "content": "t", "tool_call_id": "c1", "x": 1},
    ]
    assert template_messages(messages) == messages


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]}, "ab"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"role": "assistant", "content": None}, ""),
        ({"role": "assistant", "tool_calls": [CALL]}, ""),
        ({"role": "user", "content": []}, ""),
    ],
)
def test_content_becomes_one_string(message: dict[str, Any], expected: str) -> None:
    assert template_messages([message])[0]["content"] == expected


def test_arguments_of_calls_become_objects() -> None:
    bare = {"name": "g", "arguments": {"b": 1}}
    (one,) = template_messages([{"role": "assistant", "content": "", "tool_calls": [CALL, {"function": bare}, bare]}])
    assert one["tool_calls"][0] == {**CALL, "function": {"name": "f", "arguments": {"a": [1]}}}
    assert [call["function"] for call in one["tool_calls"][1:]] == [bare, bare]


@pytest.mark.parametrize("arguments", ["", None, {}, " ", "null", "{}"])
def test_missing_arguments_become_an_empty_object(arguments: object) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (one,) = template_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert one["tool_calls"] == [{"function": {"name": "f", "arguments": {}}}]


DEEP = '{"a": ' * 200 + "1" + "}" * 200


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"city": "', '{"city": "'),
        ("rm -rf", "rm -rf"),
        ("[1]", "[1]"),
        ("5", "5"),
        ('"x"', '"x"'),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1}}', '{"a": 1}}'),
        ("[" * 99_999, "[" * 99_999),
        (DEEP, DEEP),
        ([1, "é"], '[1, "é"]'),
        (5, "5"),
    ],
)
def test_arguments_that_are_no_object_become_the_text_of_one_argument(arguments: Any, text: str) -> None:
    """A server that cut the call, or a model without a grammar, wrote them: no client can correct them."""
    assert past_arguments(arguments) == {WHOLE_ARGUMENTS: text}


def test_last_value_of_a_repeated_argument_counts() -> None:
    assert past_arguments('{"a": 1, "b": 2, "a": 3}') == {"a": 3, "b": 2}


def test_deprecated_and_custom_calls_become_tool_calls() -> None:
    function = {"name": "f", "arguments": "{"}
    custom = {"id": "c", "type": "custom", "custom": {"name": "x", "input": "hi"}}
    found = template_messages(
        [
            {"role": "assistant", "content": None, "function_call": function},
            {"role": "function", "name": "f", "content": "r"},
            {"role": "assistant", "tool_calls": [custom]},
        ]
    )
    assert found == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {WHOLE_ARGUMENTS: "{"}}}],
        },
        {"role": "tool", "name": "f", "content": "r"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "x", "arguments": {"input": "hi"}}},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "tool", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, "[image]"),
        ({"role": "tool", "content": {"a": 1}}, '{"a": 1}'),
        ({"role": "tool"}, ""),
        ({"role": "assistant", "content": [{"type": "audio", "id": "x"}, {"type": "text", "text": "a"}]}, "[audio]a"),
        ({"role": "assistant"}, ""),
        ({"role": "assistant", "content": None, "refusal": "no"}, "no"),
    ],
)
def test_what_models_and_tools_wrote_is_never_refused(message: dict[str, Any], content: str) -> None:
    assert template_messages([message])[0]["content"] == content


def test_thinking_parts_of_an_answer_become_its_reasoning() -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]
    (one,) = template_messages([{"role": "assistant", "content": parts}])
    assert (one["reasoning_content"], one["content"]) == ("hm", "a")


def test_reasoning_is_moved_to_reasoning_content() -> None:
    for name in ("reasoning", "reasoning_content"):
        (one,) = template_messages([{"role": "assistant", "content": "a", name: "t"}])
        assert one == {"role": "assistant", "content": "a", "reasoning_content": "t"}
    (one,) = template_messages([{"role": "assistant", "content": "a", "reasoning": None, "reasoning_content": None}])
    assert one == {"role": "assistant", "content": "a"}


def test_instructions_at_the_beginning_become_one_system_message() -> None:
    """Qwen's templates accept only one system message, as the first message."""
    system, developer = {"role": "system", "content": "a"}, {"role": "developer", "content": "b"}
    joined = {"role": "system", "content": "a\n\nb"}
    assert template_messages([system, developer, USER, developer]) == [joined, USER, {"role": "system", "content": "b"}]


def test_many_instructions_are_joined_at_once() -> None:
    class Text(str):
        def __format__(self, form: str) -> str:
            raise AssertionError("to add each text to the ones before takes minutes")

    given = [{"role": "system", "content": Text("ab")}] * 100
    assert template_messages(given) == [{"role": "system", "content": "\n\n".join(["ab"] * 100)}]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("hi", "messages\\[0\\].*role"),
        ({"content": "a"}, "role"),
        ({"role": 3, "content": "a"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 3}, r"content: 3 is neither text nor a list"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "must be text.*image_url"),
        ({"role": "user", "content": [{"type": "text"}]}, "must be text"),
        ({"role": "user", "content": ["a"]}, "must be text"),
        ({"role": "user", "content": [{"type": ["text"], "text": "a"}]}, "must be text"),
        ({"role": "assistant", "tool_calls": 3}, "not a list"),
        ({"role": "assistant", "tool_calls": [3]}, "tool_calls\\[0\\]"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}, '"name"'),
    ],
)
def test_malformed_message_is_refused_with_its_index(message: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"(?s){reason}"):
        template_messages([message])


@pytest.mark.parametrize("messages", ["hi", None, {"role": "user"}])
def test_messages_must_be_a_sequence(messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match="sequence of messages"):
        template_messages(messages)


def test_chat_takes_messages_in_openais_form(llm: LLM) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "de"}, {"type": "text", "text": "f f"}]}]
    plain = [{"role": "user", "content": "def f"}]
    assert llm.chat(parts, SamplingParams(4)).prompt_token_ids == llm.chat(plain, SamplingParams(4)).prompt_token_ids
