"""Tests of the events of /v1/messages: a client that joins the events gets the whole message."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from helpers.late import anthropic
from helpers.output_events import Batches, event_batches, finish_info, fixed_response
from hypothesis import given
from pydantic import TypeAdapter

from pymtp.chat import ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallStart
from pymtp.server.event_response import FinishInfo
from pymtp.server.http.sse import encode_events
from pymtp.server.message_builder import encode_thinking
from pymtp.server.messages.types import AnthropicMessage
from pymtp.server.messages.write import MessageWriter

REQUEST: dict[str, Any] = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
WHOLE = finish_info(whole=True)


@cache
def known_messages() -> TypeAdapter[Any]:
    return TypeAdapter(AnthropicMessage)


@cache
def known_events() -> TypeAdapter[Any]:
    """Return a validator of Anthropic's events, which takes as long to make as dozens of events to validate."""
    return TypeAdapter(anthropic.types.RawMessageStreamEvent)


def client(body: bytes, content_type: str) -> anthropic.Anthropic:
    http = anthropic.DefaultHttpxClient(transport=fixed_response(body, content_type))
    return anthropic.Anthropic(api_key="none", http_client=http)


def events_of(each: Batches, end: FinishInfo, *, shows_thinking: bool = True) -> list[dict[str, Any]]:
    writer = MessageWriter("demo", shows_thinking=shows_thinking)
    events = writer.begin(20)
    for batch in each:
        events += writer.push(batch)
    return events + writer.end(end)


def streamed(each: Batches, end: FinishInfo = WHOLE, **how: bool) -> anthropic.types.Message:
    body = encode_events(events_of(each, end, **how))
    with client(body, "text/event-stream").messages.stream(**REQUEST) as stream:
        return stream.get_final_message()


def at_once(each: Batches, end: FinishInfo = WHOLE, *, shows_thinking: bool = True) -> anthropic.types.Message:
    writer = MessageWriter("demo", shows_thinking=shows_thinking)
    writer.push([event for batch in each for event in batch])
    message = writer.whole(end)
    known_messages().validate_python(message)
    return client(json.dumps(message).encode(), "application/json").messages.create(**REQUEST)


def seen(message: anthropic.types.Message) -> dict[str, Any]:
    """Return all fields of a message except the ids."""
    blocks = [block.model_dump(exclude={"id", "parsed_output"}) for block in message.content]
    return message.model_dump(exclude={"id", "content", "pymtp"}) | {"content": blocks}


@given(event_batches())
def test_joined_events_equal_the_message(given_batches: tuple[Batches, bool]) -> None:
    each, whole = given_batches
    end = finish_info(whole=whole, called=any(isinstance(event, ToolCallStart) for batch in each for event in batch))
    assert seen(streamed(each, end)) == seen(at_once(each, end))


@given(event_batches())
def test_events_validate_as_anthropics_types(given_batches: tuple[Batches, bool]) -> None:
    each, whole = given_batches
    known = known_events()
    for event in events_of(each, finish_info(whole=whole)):
        if event["type"] != "ping":
            known.validate_python(event)


def test_events_come_in_anthropics_order() -> None:
    each = [
        [ReasoningDelta("hm", 0, 2)],
        [ContentDelta("a", 9, 10), ContentDelta("b", 10, 11)],
        [ToolCallStart(0, "ls"), ToolCallDelta(0, "{}")],
    ]
    begun = ["content_block_start", "content_block_delta", "content_block_stop"]
    thought = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    names = [event["type"] for event in events_of(each, WHOLE)]
    assert names == ["message_start", "ping", *thought, *begun, *begun, "message_delta", "message_stop"]


def test_content_blocks_have_the_order_of_the_output() -> None:
    each = [
        [
            ContentDelta("a", 0, 1),
            ToolCallStart(0, "ls"),
            ToolCallDelta(0, "{}"),
            ReasoningDelta("b", 9, 10),
            ContentDelta("c", 20, 21),
        ]
    ]
    assert [block.type for block in at_once(each).content] == ["text", "tool_use", "thinking", "text"]


def test_cut_off_tool_call_has_only_complete_values() -> None:
    each = [[ToolCallStart(0, "ls"), ToolCallDelta(0, '{"all": true, "path": "/home/m')]]
    (block,) = at_once(each, finish_info(whole=False)).content
    assert block.input == {"all": True}


def test_hidden_thinking_is_in_the_signature() -> None:
    each = [[ReasoningDelta("hm", 0, 2), ContentDelta("a", 9, 10)]]
    for message in (streamed(each, shows_thinking=False), at_once(each, shows_thinking=False)):
        block = message.content[0]
        assert (block.thinking, block.signature) == ("", encode_thinking("hm"))


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (finish_info(whole=True), "end_turn", None),
        (finish_info(whole=True, stop="END"), "stop_sequence", "END"),
        (finish_info(whole=True, called=True), "tool_use", None),
        (finish_info(whole=False), "max_tokens", None),
        (finish_info(whole=False, context_full=True), "model_context_window_exceeded", None),
    ],
)
def test_stop_reason_is_derived_from_the_finish_info(end: FinishInfo, reason: str, sequence: str | None) -> None:
    for message in (streamed([[ContentDelta("a", 0, 1)]], end), at_once([[ContentDelta("a", 0, 1)]], end)):
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


def test_usage_separates_cached_tokens() -> None:
    usage = streamed([[ContentDelta("a", 0, 1)]]).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (15, 5, 9)
    assert usage.output_tokens_details.thinking_tokens == 2
