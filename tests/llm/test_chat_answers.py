"""Tests of the parts of a chat's answer: thinking, content and tool calls, whole and in a stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pymtp import LLM, AsyncLLM, InvalidRequestError, Piece, SamplingParams
from pymtp.chat import ToolCallDelta, ToolCallStart

HELLO = [{"role": "user", "content": "Hello."}]
SUM = [{"role": "user", "content": "What is 457 + 86?"}]  # the model thinks for some 20 tokens
PLAIN: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}
WHEEL = {"type": "function", "function": {"name": "wheel"}}


class Answer:
    """Stands for a class of Pydantic."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return NUMBER


def test_required_tool_calls_are_valid(llm: LLM) -> None:
    answer = llm.chat(HELLO, tools=TOOLS, tool_choice="required", max_tokens=200, temperature=0.0)
    assert answer.tool_calls, answer.text
    for call in answer.tool_calls:
        assert call.name == "get_weather"
        assert set(json.loads(call.arguments)) == {"city"}
    assert answer.content == ""
    choice = {"type": "function", "function": {"name": "get_weather"}}
    named = llm.chat(HELLO, tools=TOOLS, tool_choice=choice, max_tokens=200, temperature=0.0)
    assert len(named.tool_calls) == 1


def test_thinking_and_content_of_a_schema_are_apart(llm: LLM) -> None:
    for schema in (NUMBER, json.dumps(NUMBER), Answer):
        answer = llm.chat(SUM, json_schema=schema, thinking_budget=8, max_tokens=60, temperature=0.0)
        assert answer.reasoning, answer.text
        assert 0 <= json.loads(answer.content) <= 999
        assert answer.stats.thinking_tokens <= 8


def test_schema_begins_after_the_thinking_without_a_budget_too(llm: LLM) -> None:
    answer = llm.chat(SUM, json_schema=NUMBER, max_tokens=8, temperature=0.0)
    assert answer.content == ""
    assert answer.reasoning
    assert not answer.reasoning.strip().isdigit()


def test_stream_gives_the_text_that_was_held_back_for_a_tag(llm: LLM) -> None:
    pieces = list(llm.stream_chat(HELLO, grammar='root ::= "<thi"', **PLAIN))
    assert "".join(piece.content for piece in pieces) == "<thi"
    chunks = llm.create_chat_completion(HELLO, grammar='root ::= "<thi"', stream=True, **PLAIN)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "<thi"


def test_every_completion_of_a_chat_has_its_parts(llm: LLM) -> None:
    answer = llm.chat(HELLO, json_schema=NUMBER, n=3, seed=1, temperature=1.0, **PLAIN)
    for one in (answer, *answer.others):
        assert 0 <= json.loads(one.content) <= 999
        assert one.reasoning is None


def test_completion_of_a_prompt_is_content_alone(llm: LLM) -> None:
    completion = llm.generate("import ", max_tokens=5)
    assert (completion.reasoning, completion.content, completion.tool_calls) == (None, completion.text, ())


def joined(pieces: list[Piece]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the reasoning, the content and the calls of the pieces of a stream."""
    calls: list[tuple[str, str]] = []
    for event in (event for piece in pieces for event in piece.events):
        if isinstance(event, ToolCallStart):
            calls.append((event.name, ""))
        elif isinstance(event, ToolCallDelta):
            calls[event.index] = (calls[event.index][0], calls[event.index][1] + event.text)
    return "".join(piece.reasoning for piece in pieces), "".join(piece.content for piece in pieces), calls


@pytest.mark.parametrize(
    "keywords",
    [{"tools": TOOLS, "tool_choice": "required"}, {"json_schema": NUMBER, "thinking_budget": 8}, {}],
    ids=["tools", "schema", "text"],
)
def test_streams_of_chats_give_the_parts_of_the_completion(llm: LLM, keywords: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=120, temperature=0.8, seed=4)
    answer = llm.chat(SUM, params, **keywords)
    stream = llm.stream_chat(SUM, params, **keywords)
    pieces = list(stream)

    async def read() -> list[Piece]:
        async with AsyncLLM(llm) as several:
            return [piece async for piece in several.stream_chat(SUM, params, **keywords)]

    assert stream.completion.parsed == answer.parsed
    for each in (pieces, asyncio.run(read())):
        reasoning, content, calls = joined(each)
        assert (reasoning, content) == (answer.reasoning or "", answer.content)
        assert [call for call in calls if call[1].endswith("}")] == [
            (call.name, call.arguments) for call in answer.tool_calls
        ]


def test_closed_stream_of_a_chat_has_no_more_pieces(llm: LLM) -> None:
    with llm.stream_chat(HELLO, max_tokens=9, grammar='root ::= "<thi"', **PLAIN) as stream:
        assert next(stream).content == ""  # a tag may begin here
    assert list(stream) == []


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"tools": ["get_weather"]}, r"tools\[0\] must be"),
        ({"tools": [print]}, r"tools\[0\] must be"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\]"),
        ({"tools": TOOLS * 2}, "two tools have the name"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice='always' must be"),
        ({"tools": TOOLS, "tool_choice": WHEEL}, "tool_choice names 'wheel'"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": TOOLS, "grammar": 'root ::= "a"'}, "cannot be combined"),
        ({"json_schema": {"type": "object", "not": {}}}, "no value is valid"),
        ({"json_schema": 3}, "json_schema=3 must be"),
        ({"json_schema": dict}, "json_schema=<class 'dict'> must be"),
    ],
)
def test_wrong_tools_and_schemas_are_refused(llm: LLM, keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.chat(HELLO, max_tokens=5, **keywords)


def test_class_that_cannot_tell_its_schema_is_refused(llm: LLM) -> None:
    class Broken:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            raise KeyError("no schema")

    with pytest.raises(InvalidRequestError, match=r"tells no schema.*no schema"):
        llm.chat(HELLO, json_schema=Broken)
