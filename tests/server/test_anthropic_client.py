"""Claims about /v1/messages, by Anthropic's own client against a server that listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message
from helpers.servers import Server

from pymtp import SamplingParams

MESSAGES = [{"role": "user", "content": "def fibonacci(n):"}]
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
def client(server: Server) -> Anthropic:
    return Anthropic(**options(server))


def expected(server: Server, *messages: dict[str, str], **params: Any) -> str:
    return server.llm.chat(messages or MESSAGES, SamplingParams(**({"max_tokens": 24} | params))).text


def seen(message: Message) -> dict[str, Any]:
    """What is not new each time."""
    blocks = [block.model_dump(exclude={"id", "parsed_output"}) for block in message.content]
    return {"content": blocks, "stop_reason": message.stop_reason, "output_tokens": message.usage.output_tokens}


def text_of(message: Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_a_message_has_the_text_of_the_llm(server: Server, client: Anthropic) -> None:
    message = client.messages.create(**GREEDY)
    assert text_of(message) == expected(server)
    assert (message.role, message.model, message.stop_reason) == ("assistant", "demo", "max_tokens")
    assert message.usage.output_tokens == 24


def test_a_stream_joins_to_the_message(client: Anthropic) -> None:
    whole = client.messages.create(**GREEDY)
    with client.messages.stream(**GREEDY) as stream:
        pieces = list(stream.text_stream)
        joined = stream.get_final_message()
    assert pieces
    assert "".join(pieces) == text_of(whole)
    assert seen(joined) == seen(whole)


def test_the_asynchronous_client_has_the_same(server: Server, client: Anthropic) -> None:
    async def both() -> tuple[Message, Message]:
        async with AsyncAnthropic(**options(server)) as other:
            async with other.messages.stream(**GREEDY) as stream:
                joined = await stream.get_final_message()
            return await other.messages.create(**GREEDY), joined

    whole, joined = asyncio.run(both())
    assert seen(whole) == seen(joined) == seen(client.messages.create(**GREEDY))


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]])
def test_a_system_prompt_comes_first(server: Server, client: Anthropic, system: Any) -> None:
    message = client.messages.create(**GREEDY, system=system)
    said = system if isinstance(system, str) else "Be\n\nbrief."
    assert text_of(message) == expected(server, {"role": "system", "content": said}, *MESSAGES)


def test_an_answer_goes_on_with_the_assistants_last_message(server: Server, client: Anthropic) -> None:
    whole = expected(server)
    begun = {"role": "assistant", "content": whole[:9]}
    message = client.messages.create(**GREEDY | {"messages": [*MESSAGES, begun]})
    assert text_of(message).startswith(whole[9:])


def test_a_stop_sequence_is_named(client: Anthropic) -> None:
    whole = text_of(client.messages.create(**GREEDY))
    stop = whole[10:14]
    message = client.messages.create(**GREEDY, stop_sequences=["never", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == whole[: whole.index(stop)]


def test_a_full_context_is_told(new_server: Callable[..., Server]) -> None:
    server = new_server(llm={"n_ctx": 256}).ready()
    with Anthropic(**options(server)) as client:
        endless = {"grammar": "root ::= [a-z]+ root"}
        message = client.messages.create(**GREEDY | {"max_tokens": 4000, "extra_body": endless})
    assert message.stop_reason == "model_context_window_exceeded"


def test_any_tool_is_called_with_arguments_that_fit(client: Anthropic) -> None:
    for seed in range(4):
        asked = GREEDY | {"max_tokens": 400, "extra_body": {"seed": seed}}
        message = client.messages.create(**asked, tools=[WEATHER], tool_choice=ONE_OF_ANY)
        (block,) = message.content
        assert (message.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "get_weather")
        jsonschema.validate(block.input, WEATHER["input_schema"])


def test_several_tools_may_be_called(client: Anthropic) -> None:
    message = client.messages.create(**GREEDY | {"max_tokens": 400}, tools=[WEATHER], tool_choice={"type": "any"})
    assert [block.type for block in message.content].count("tool_use") > 1


def test_the_named_tool_is_called_in_a_stream_too(client: Anthropic) -> None:
    asked = GREEDY | {"max_tokens": 200}
    more = {
        "tools": [WEATHER, CLOCK],
        "tool_choice": {"type": "tool", "name": "clock", "disable_parallel_tool_use": True},
    }
    whole = client.messages.create(**asked, **more)
    with client.messages.stream(**asked, **more) as stream:
        joined = stream.get_final_message()
    assert seen(joined) == seen(whole)
    assert {block.name for block in whole.content if block.type == "tool_use"} == {"clock"}


def test_no_tool_is_called_where_none_may_be(client: Anthropic) -> None:
    message = client.messages.create(**GREEDY, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["text"]


def test_an_answer_is_held_to_a_schema(client: Anthropic) -> None:
    schema = WEATHER["input_schema"]
    asked = GREEDY | {"max_tokens": 400, "extra_body": {"seed": 1}}
    message = client.messages.create(**asked, output_config={"format": {"type": "json_schema", "schema": schema}})
    jsonschema.validate(json.loads(text_of(message)), schema)


def test_thinking_is_a_block_of_its_own_and_can_be_handed_back(client: Anthropic) -> None:
    written = {"grammar": r'root ::= "<think>\nhm, well\n</think>\n\nyes"'}
    message = client.messages.create(**GREEDY | {"max_tokens": 99, "extra_body": written})
    thought, said = message.content
    assert (thought.type, thought.thinking) == ("thinking", "hm, well")
    assert (said.type, said.text) == ("text", "yes")
    assert message.usage.output_tokens_details.thinking_tokens > 0
    chat = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": "go on"}]
    assert client.messages.create(**GREEDY | {"messages": chat}).content


def test_thinking_can_be_left_out_of_what_is_shown(client: Anthropic) -> None:
    written = {"grammar": r'root ::= "<think>\nhm, well\n</think>\n\nyes"'}
    thinking = {"type": "adaptive", "display": "omitted"}
    message = client.messages.create(**GREEDY | {"max_tokens": 99, "extra_body": written}, thinking=thinking)
    assert (message.content[0].type, message.content[0].thinking) == ("thinking", "")


def test_what_tools_answer_is_read(client: Anthropic) -> None:
    asked = GREEDY | {"max_tokens": 200}
    call = client.messages.create(**asked, tools=[CLOCK], tool_choice={"type": "tool", "name": "clock"})
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


def test_counted_tokens_are_those_of_the_prompt(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="demo", messages=MESSAGES, system="Be brief.").input_tokens
    usage = client.messages.create(**GREEDY, system="Be brief.").usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_what_is_known_of_a_prompt_is_counted_as_read_from_the_cache(client: Anthropic) -> None:
    asked = GREEDY | {"messages": [{"role": "user", "content": "cache me, " * 50}]}
    first, second = client.messages.create(**asked).usage, client.messages.create(**asked).usage
    assert second.cache_read_input_tokens > 0
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens + first.cache_read_input_tokens
