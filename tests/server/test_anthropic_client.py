"""Tests of /v1/messages with Anthropic's own client and a listening server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from helpers.late import anthropic
from helpers.servers import Server

from pymtp import SamplingParams

QUESTION = "Write a Python function to return the n-th Fibonacci number. Call it fibonacci."  # a long answer
MESSAGES = [{"role": "user", "content": QUESTION}]
GREEDY: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 24, "extra_body": {"temperature": 0}}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a town.",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string", "enum": ["Bonn", "Kiel"]}, "days": {"type": "integer", "maximum": 9}},
        "required": ["town", "days"],
        "additionalProperties": False,
    },
}
ONE_OF_ANY = {"type": "any", "disable_parallel_tool_use": True}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}


def options(server: Server) -> dict[str, Any]:
    return {"base_url": server.url, "api_key": server.key, "max_retries": 0}


@pytest.fixture
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(**options(server))


def expected(server: Server, *messages: dict[str, str]) -> str:
    off = {"enable_thinking": False}  # as in a request without the field "thinking"
    return server.llm.chat(messages or MESSAGES, SamplingParams(max_tokens=24), chat_template_kwargs=off).text


def seen(message: anthropic.types.Message) -> dict[str, Any]:
    """Return the fields of a message that are the same for equal requests."""
    blocks = [block.model_dump(exclude={"id", "parsed_output"}) for block in message.content]
    return {"content": blocks, "stop_reason": message.stop_reason, "output_tokens": message.usage.output_tokens}


def text_of(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_message_has_the_same_text_as_the_llm(server: Server, client: anthropic.Anthropic) -> None:
    message = client.messages.create(**GREEDY)
    assert text_of(message) == expected(server)
    assert (message.role, message.model, message.stop_reason) == ("assistant", "demo", "max_tokens")
    assert message.usage.output_tokens == 24


def test_stream_events_join_to_the_whole_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**GREEDY)
    with client.messages.stream(**GREEDY) as stream:
        pieces = list(stream.text_stream)
        joined = stream.get_final_message()
    assert pieces
    assert "".join(pieces) == text_of(whole)
    assert seen(joined) == seen(whole)


def test_async_client_gets_the_same_message_as_the_sync_client(server: Server, client: anthropic.Anthropic) -> None:
    async def both() -> tuple[anthropic.types.Message, anthropic.types.Message]:
        async with anthropic.AsyncAnthropic(**options(server)) as other:
            async with other.messages.stream(**GREEDY) as stream:
                joined = await stream.get_final_message()
            return await other.messages.create(**GREEDY), joined

    whole, joined = asyncio.run(both())
    assert seen(whole) == seen(joined) == seen(client.messages.create(**GREEDY))


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]])
def test_system_prompt_is_the_first_message_of_the_chat(
    server: Server, client: anthropic.Anthropic, system: Any
) -> None:
    message = client.messages.create(**GREEDY, system=system)
    said = system if isinstance(system, str) else "Be\n\nbrief."
    assert text_of(message) == expected(server, {"role": "system", "content": said}, *MESSAGES)


def test_answer_continues_the_assistants_last_message(server: Server, client: anthropic.Anthropic) -> None:
    whole = expected(server)
    begun = {"role": "assistant", "content": whole[:9]}
    message = client.messages.create(**GREEDY | {"messages": [*MESSAGES, begun]})
    assert text_of(message).startswith(whole[9:])


def test_message_reports_the_stop_sequence(client: anthropic.Anthropic) -> None:
    whole = text_of(client.messages.create(**GREEDY))
    stop = whole[10:14]
    message = client.messages.create(**GREEDY, stop_sequences=["never", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == whole[: whole.index(stop)]


def test_message_reports_a_full_context_as_its_stop_reason(new_server: Callable[..., Server]) -> None:
    server = new_server(llm={"n_ctx": 256}).ready()
    with anthropic.Anthropic(**options(server)) as client:
        endless = {"grammar": "root ::= [a-z]+ root"}
        message = client.messages.create(**GREEDY | {"max_tokens": 4000, "extra_body": endless})
    assert message.stop_reason == "model_context_window_exceeded"


def test_tool_choice_any_calls_a_tool_with_valid_arguments(client: anthropic.Anthropic) -> None:
    for seed in range(4):
        request_body = GREEDY | {"max_tokens": 400, "extra_body": {"seed": seed}}
        message = client.messages.create(**request_body, tools=[WEATHER], tool_choice=ONE_OF_ANY)
        (block,) = message.content
        assert (message.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "get_weather")
        jsonschema.validate(block.input, WEATHER["input_schema"])


def test_message_may_have_several_tool_calls_but_none_twice(client: anthropic.Anthropic) -> None:
    # the shipped model ends after the first call
    request_body = GREEDY | {"max_tokens": 400, "extra_body": {"temperature": 1.3, "seed": 1, "ignore_eos": True}}
    message = client.messages.create(**request_body, tools=[WEATHER], tool_choice={"type": "any"})
    calls = [json.dumps(block.input) for block in message.content if block.type == "tool_use"]
    assert len(calls) > 1
    assert len({*calls}) == len(calls)
    # greedy decoding would write the first call again and again
    message = client.messages.create(**GREEDY | {"max_tokens": 400}, tools=[WEATHER], tool_choice={"type": "any"})
    assert ([block.type for block in message.content], message.stop_reason) == (["tool_use"], "tool_use")


def test_named_tool_is_called_in_messages_and_streams(client: anthropic.Anthropic) -> None:
    request_body = GREEDY | {"max_tokens": 200}
    more = {
        "tools": [WEATHER, CLOCK],
        "tool_choice": {"type": "tool", "name": "clock", "disable_parallel_tool_use": True},
    }
    whole = client.messages.create(**request_body, **more)
    with client.messages.stream(**request_body, **more) as stream:
        joined = stream.get_final_message()
    assert seen(joined) == seen(whole)
    assert {block.name for block in whole.content if block.type == "tool_use"} == {"clock"}


def test_tool_choice_none_calls_no_tool(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**GREEDY, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["text"]


def test_output_format_enforces_the_schema(client: anthropic.Anthropic) -> None:
    schema = WEATHER["input_schema"]
    request_body = GREEDY | {"max_tokens": 400, "extra_body": {"seed": 1}}
    message = client.messages.create(
        **request_body, output_config={"format": {"type": "json_schema", "schema": schema}}
    )
    jsonschema.validate(json.loads(text_of(message)), schema)


def test_thinking_block_can_be_sent_back(client: anthropic.Anthropic) -> None:
    written = {"grammar": r'root ::= "<think>\nhm, well\n</think>\n\nyes"'}
    message = client.messages.create(**GREEDY | {"max_tokens": 99, "extra_body": written})
    thought, said = message.content
    assert (thought.type, thought.thinking) == ("thinking", "hm, well")
    assert (said.type, said.text) == ("text", "yes")
    assert message.usage.output_tokens_details.thinking_tokens > 0
    chat = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": "go on"}]
    assert client.messages.create(**GREEDY | {"messages": chat}).content


def test_thinking_display_omitted_hides_the_thinking(client: anthropic.Anthropic) -> None:
    written = {"grammar": r'root ::= "<think>\nhm, well\n</think>\n\nyes"'}
    thinking = {"type": "adaptive", "display": "omitted"}
    message = client.messages.create(**GREEDY | {"max_tokens": 99, "extra_body": written}, thinking=thinking)
    assert (message.content[0].type, message.content[0].thinking) == ("thinking", "")


def test_tool_results_are_part_of_the_prompt(client: anthropic.Anthropic) -> None:
    request_body = GREEDY | {"max_tokens": 200}
    call = client.messages.create(**request_body, tools=[CLOCK], tool_choice={"type": "tool", "name": "clock"})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "12:30"}]}
        for block in call.content
        if block.type == "tool_use"
    ]
    chat = [*MESSAGES, {"role": "assistant", "content": call.content}, {"role": "user", "content": results}]
    longer = [*chat, {"role": "user", "content": "well?"}]
    counts = [
        client.messages.count_tokens(model="demo", messages=each).input_tokens for each in (MESSAGES, chat, longer)
    ]
    assert counts == sorted(set(counts))
    assert client.messages.create(**GREEDY | {"messages": chat}, tools=[CLOCK]).content


def test_count_tokens_returns_the_input_tokens_of_the_usage(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="demo", messages=MESSAGES, system="Be brief.").input_tokens
    usage = client.messages.create(**GREEDY, system="Be brief.").usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_cached_prompt_tokens_are_counted_as_cache_reads(client: anthropic.Anthropic) -> None:
    request_body = GREEDY | {"messages": [{"role": "user", "content": "cache me, " * 50}]}
    first, second = client.messages.create(**request_body).usage, client.messages.create(**request_body).usage
    assert second.cache_read_input_tokens > 0
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens + first.cache_read_input_tokens
