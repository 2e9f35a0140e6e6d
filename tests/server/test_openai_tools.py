"""Tests of tools, schemas and thinking with OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from helpers.late import openai
from helpers.servers import LONG, Server
from makers.chat_templates import DROPS_THINKING
from makers.gguf_variants import rewrite
from pydantic import BaseModel

MESSAGES: Any = [{"role": "user", "content": "What is the weather in Paris and in Rome?"}]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
REQUEST: Any = {"model": "demo", "messages": MESSAGES, "tools": TOOLS, "temperature": 0, "max_tokens": 400}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=LONG) as client:
        yield client


@pytest.fixture(scope="module")
def thinker(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Return a client of a server for the shipped model, with a chat template that opens the thinking."""
    path = tmp_path_factory.mktemp("models") / "thinker.gguf"
    rewrite(demo, path, metadata={"tokenizer.chat_template": DROPS_THINKING})
    server = Server(model=path).ready()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=LONG) as client:
        yield client
    server.close()


NAMED: Any = {"type": "function", "function": {"name": "weather"}}


def test_named_tool_is_called_once(client: openai.OpenAI) -> None:
    """The shipped model would write calls until max_tokens."""
    (answer,) = client.chat.completions.create(**REQUEST, tool_choice=NAMED).choices
    assert (len(answer.message.tool_calls or ()), answer.finish_reason) == (1, "tool_calls")


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_required_tool_call_matches_the_schema_of_the_tool(client: openai.OpenAI, choice: Any) -> None:
    (answer,) = client.chat.completions.create(**REQUEST, tool_choice=choice, parallel_tool_calls=False).choices
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls or ()
    assert call.type == "function"
    assert answer.message.content is None
    if choice is NAMED:
        assert call.function.name == "weather"
    if call.function.name == "weather":
        jsonschema.validate(json.loads(call.function.arguments), WEATHER)


def test_streamed_tool_call_equals_the_call_without_streaming(client: openai.OpenAI) -> None:
    request_body = REQUEST | {"tool_choice": NAMED, "parallel_tool_calls": False}
    (call,) = client.chat.completions.create(**request_body).choices[0].message.tool_calls or ()
    chunks = list(client.chat.completions.create(**request_body, stream=True))
    deltas = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
    names = [one.function.name for one in deltas if one.function and one.function.name]
    arguments = "".join(one.function.arguments or "" for one in deltas if one.function)
    assert call.type == "function"
    assert (names, arguments) == (["weather"], call.function.arguments)
    assert deltas[0].id
    assert {one.index for one in deltas} == {0}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_client_accumulates_a_streamed_tool_call(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**REQUEST, tool_choice=NAMED, parallel_tool_calls=False) as stream:
        kinds = {event.type for event in stream}
        done = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = done.choices[0].message.tool_calls or ()
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)


def test_tool_choice_none_calls_no_tool(client: openai.OpenAI) -> None:
    (answer,) = client.chat.completions.create(**REQUEST | {"max_tokens": 30}, tool_choice="none").choices
    assert not answer.message.tool_calls
    assert answer.message.content


def test_chat_continues_after_a_tool_result(client: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    turns += [{"role": "tool", "tool_call_id": "call_1", "content": "noon"}]
    done = client.chat.completions.create(**REQUEST | {"messages": MESSAGES + turns, "max_tokens": 8})
    assert done.usage is not None
    assert done.usage.completion_tokens == 8


class Forecast(BaseModel):
    city: Literal["Paris", "Rome"]
    days: list[Literal["sun", "rain"]]
    sure: bool


def test_structured_output_is_parsed_by_the_client(client: openai.OpenAI) -> None:
    done = client.chat.completions.parse(
        model="demo", messages=MESSAGES, response_format=Forecast, temperature=0, max_tokens=200
    )
    assert isinstance(done.choices[0].message.parsed, Forecast)
    with client.chat.completions.stream(
        model="demo", messages=MESSAGES, response_format=Forecast, temperature=0, max_tokens=200
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == done.choices[0].message.parsed


def test_json_object_format_gives_a_json_object(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        temperature=0,
        max_tokens=300,
        response_format={"type": "json_object"},
        extra_body={"logit_bias": {}},
    )
    (choice,) = done.choices
    if choice.finish_reason == "stop":  # a small model does not always finish
        assert isinstance(json.loads(choice.message.content or ""), dict)
    else:
        assert (choice.message.content or "").startswith("{")


GRAMMAR = 'root ::= "hm, it is\\n</think>\\n\\nSunny."'


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thinking_is_separate_from_the_content(thinker: openai.OpenAI, name: str) -> None:
    request_body: Any = {"model": "demo", "messages": MESSAGES, "extra_body": {"grammar": GRAMMAR}}
    message = thinker.chat.completions.create(**request_body).choices[0].message
    assert (getattr(message, name), message.content) == ("hm, it is", "Sunny.")
    deltas = [chunk.choices[0].delta for chunk in thinker.chat.completions.create(**request_body, stream=True)]
    assert "".join(getattr(delta, name, None) or "" for delta in deltas) == "hm, it is"
    assert "".join(delta.content or "" for delta in deltas) == "Sunny."


def test_reasoning_format_none_keeps_thinking_in_the_content(thinker: openai.OpenAI) -> None:
    extra = {"grammar": GRAMMAR, "reasoning_format": "none"}
    message = thinker.chat.completions.create(model="demo", messages=MESSAGES, extra_body=extra).choices[0].message
    assert "hm, it is" in (message.content or "")
    assert "</think>" in (message.content or "")


@pytest.mark.parametrize(
    "off", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}], ids=str
)
def test_thinking_can_be_disabled(thinker: openai.OpenAI, off: dict[str, Any]) -> None:
    extra = {"grammar": 'root ::= "Sunny."', **off}
    message = thinker.chat.completions.create(model="demo", messages=MESSAGES, extra_body=extra).choices[0].message
    assert message.content == "Sunny."
    assert getattr(message, "reasoning_content", None) is None
