"""Tests of /v1/responses with OpenAI's own client and a listening server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import pytest
from helpers.late import openai
from helpers.servers import Server
from pydantic import BaseModel

from pymtp import SamplingParams

QUESTION = "Write a Python function to return the n-th Fibonacci number. Call it fibonacci."  # a long answer
USER = {"role": "user", "content": QUESTION}
GREEDY: dict[str, Any] = {"model": "demo", "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string", "enum": ["Bonn", "Kiel"]}},
        "required": ["town"],
        "additionalProperties": False,
    },
    "strict": True,
}
CLOCK = WEATHER | {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}


class Weather(BaseModel):
    town: Literal["Bonn", "Kiel"]
    is_cold: bool


def options(server: Server) -> dict[str, Any]:
    return {"base_url": f"{server.url}/v1", "api_key": server.key, "max_retries": 0}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(**options(server)) as client:
        yield client


def expected(server: Server, *messages: dict[str, Any], **params: Any) -> str:
    return server.llm.chat(messages or [USER], SamplingParams(**({"max_tokens": 24} | params))).content


def seen(response: openai.types.responses.Response) -> dict[str, Any]:
    """Return the fields of a response that are the same for equal requests."""
    items = [item.model_dump(exclude={"id", "call_id", "parsed_arguments"}) for item in response.output]
    return {"output": items, "status": response.status, "written": response.usage.output_tokens}


def test_response_has_the_same_text_as_the_llm(server: Server, client: openai.OpenAI) -> None:
    response = client.responses.create(**GREEDY)
    assert response.output_text == expected(server)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.model, response.usage.output_tokens) == ("demo", 24)


def test_stream_ends_with_the_whole_response(client: openai.OpenAI) -> None:
    events = list(client.responses.create(**GREEDY, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.incomplete"
    assert seen(events[-1].response) == seen(client.responses.create(**GREEDY))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == events[-1].response.output_text


def test_stream_has_several_text_deltas(client: openai.OpenAI) -> None:
    # With a shorter text, a busy machine could finish the completion before it sends the first delta.
    request_body = GREEDY | {"max_output_tokens": 400, "extra_body": {"ignore_eos": True}}
    kinds = [event.type for event in client.responses.create(**request_body, stream=True)]
    assert kinds.count("response.output_text.delta") > 1


def test_prompt_tokens_are_counted_without_a_response(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "input": QUESTION, "instructions": "Be brief."}
    done = client.responses.create(**asked, max_output_tokens=16)
    counted = client.responses.input_tokens.count(**asked)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", done.usage.input_tokens)  # type: ignore[union-attr]
    further = client.responses.input_tokens.count(model="demo", input="go on", previous_response_id=done.id)
    assert further.input_tokens > counted.input_tokens


def test_stream_tells_progress_and_timings_on_request(client: openai.OpenAI) -> None:
    asked = {"return_progress": True, "timings_per_token": True}
    events = [event.model_dump() for event in client.responses.create(**GREEDY, stream=True, extra_body=asked)]
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert {event["type"] for event in events if "prompt_progress" in event} == {"response.in_progress"}
    assert progress[0]["processed"] == progress[0]["cache"]
    assert progress[-1]["processed"] == progress[-1]["total"] == events[-1]["response"]["usage"]["input_tokens"]
    assert all("timings" in event for event in events if event["type"] == "response.output_text.delta")
    assert events[-1]["timings"]["predicted_n"] == 24
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    plain = client.responses.create(**GREEDY, stream=True)
    assert not any({"timings", "prompt_progress"} & event.model_dump().keys() for event in plain)


def test_stream_of_the_client_joins_to_the_whole_response(client: openai.OpenAI) -> None:
    request_body = GREEDY | {"extra_body": {"grammar": 'root ::= "yes, " [a-z]{12}'}}
    whole = client.responses.create(**request_body)
    with client.responses.stream(**request_body) as stream:
        joined = stream.get_final_response()
    assert (whole.status, joined.output_text) == ("completed", whole.output_text)


def test_async_client_gets_the_same_response_as_the_sync_client(server: Server, client: openai.OpenAI) -> None:
    async def both() -> tuple[openai.types.responses.Response, openai.types.responses.Response]:
        async with openai.AsyncOpenAI(**options(server)) as other:
            whole = await other.responses.create(**GREEDY)
            *_, last = [event async for event in await other.responses.create(**GREEDY, stream=True)]
            return whole, last.response

    whole, joined = asyncio.run(both())
    assert seen(whole) == seen(joined) == seen(client.responses.create(**GREEDY))


def test_instructions_and_developer_messages_are_first_in_the_chat(server: Server, client: openai.OpenAI) -> None:
    before = {"role": "developer", "content": [{"type": "input_text", "text": "Use Python."}]}
    response = client.responses.create(**GREEDY | {"input": [before, USER]}, instructions="Be brief.")
    assert response.output_text == expected(server, {"role": "system", "content": "Be brief.\n\nUse Python."}, USER)


def test_structured_output_is_parsed_by_the_client(client: openai.OpenAI) -> None:
    request_body = GREEDY | {"max_output_tokens": 200, "extra_body": {"seed": 2}}
    parsed = client.responses.parse(**request_body, text_format=Weather).output_parsed
    assert isinstance(parsed, Weather)


def test_json_object_format_gives_a_json_object(client: openai.OpenAI) -> None:
    response = client.responses.create(**GREEDY, text={"format": {"type": "json_object"}})
    assert response.output_text.lstrip().startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_required_tool_is_called(client: openai.OpenAI, choice: Any) -> None:
    request_body = GREEDY | {"max_output_tokens": 400, "parallel_tool_calls": False}
    response = client.responses.create(**request_body, tools=[WEATHER], tool_choice=choice)
    (call,) = response.output
    assert (response.status, call.type, call.name, call.status) == (
        "completed",
        "function_call",
        "get_weather",
        "completed",
    )
    jsonschema.validate(json.loads(call.arguments), WEATHER["parameters"])
    with client.responses.stream(**request_body, tools=[WEATHER], tool_choice=choice) as stream:
        joined = stream.get_final_response()
    assert seen(joined) == seen(response)


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]}
    request_body = GREEDY | {"max_output_tokens": 400, "parallel_tool_calls": False}
    (call,) = client.responses.create(**request_body, tools=[WEATHER, CLOCK], tool_choice=choice).output
    assert call.name == "clock"


def test_hosted_tools_are_ignored(server: Server, client: openai.OpenAI) -> None:
    response = client.responses.create(**GREEDY, tools=[{"type": "web_search"}])
    assert (response.output_text, response.tools) == (expected(server), [])


def test_reasoning_item_can_be_sent_back(client: openai.OpenAI) -> None:
    written = {"grammar": r'root ::= "hm, well\n</think>\n\nyes"'}
    request_body = GREEDY | {"max_output_tokens": 99, "include": ["reasoning.encrypted_content"], "extra_body": written}
    response = client.responses.create(**request_body)
    thought, said = response.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "hm, well")
    assert said.content[0].text == "yes"
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    carried = thought.model_dump(exclude={"content", "status"})
    assert client.responses.create(**GREEDY | {"input": [USER, carried, said.model_dump(), USER]}).output_text


def test_tool_call_and_output_are_part_of_the_prompt(client: openai.OpenAI) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "clock", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "12:30"}
    few = client.responses.create(**GREEDY, tools=[CLOCK])
    more = client.responses.create(**GREEDY | {"input": [USER, call, output]}, tools=[CLOCK])
    assert more.usage.input_tokens > few.usage.input_tokens


def test_cached_prompt_tokens_are_counted(client: openai.OpenAI) -> None:
    request_body = GREEDY | {"input": "cache me, too, " * 40}
    client.responses.create(**request_body)
    usage = client.responses.create(**request_body).usage
    assert 0 < usage.input_tokens_details.cached_tokens < usage.input_tokens
