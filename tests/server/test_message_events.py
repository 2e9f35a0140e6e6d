"""Claims about the events of /v1/messages: a client that joins them has the message."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from helpers.answer_events import Batches, an_end, answers_with, batches
from hypothesis import given
from pydantic import TypeAdapter

from pymtp.chat import CallArguments, CallBegun, Said, Thought
from pymtp.server.finish import Ended
from pymtp.server.http.named_events import named_events
from pymtp.server.message_builder import sealed
from pymtp.server.messages.types import AnswerMessage
from pymtp.server.messages.write import MessageWriter

ASKED: dict[str, Any] = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
WHOLE = an_end(whole=True)


def client(body: bytes, content_type: str) -> anthropic.Anthropic:
    http = anthropic.DefaultHttpxClient(transport=answers_with(body, content_type))
    return anthropic.Anthropic(api_key="none", http_client=http)


def events_of(each: Batches, end: Ended, *, shows_thinking: bool = True) -> list[dict[str, Any]]:
    writer = MessageWriter("demo", shows_thinking=shows_thinking)
    events = writer.begin(20)
    for batch in each:
        events += writer.go_on(batch)
    return events + writer.end(end, {})


def streamed(each: Batches, end: Ended = WHOLE, **how: bool) -> Message:
    body = named_events(events_of(each, end, **how))
    with client(body, "text/event-stream").messages.stream(**ASKED) as stream:
        return stream.get_final_message()


def at_once(each: Batches, end: Ended = WHOLE, *, shows_thinking: bool = True) -> Message:
    writer = MessageWriter("demo", shows_thinking=shows_thinking)
    writer.go_on([event for batch in each for event in batch])
    message = writer.whole(end)
    AnswerMessage.model_validate(message)
    return client(json.dumps(message).encode(), "application/json").messages.create(**ASKED)


def seen(message: Message) -> dict[str, Any]:
    """All that a client sees, but for names that are new each time."""
    blocks = [block.model_dump(exclude={"id", "parsed_output"}) for block in message.content]
    return message.model_dump(exclude={"id", "content"}) | {"content": blocks}


@given(batches())
def test_joined_events_are_the_message(given_batches: tuple[Batches, bool]) -> None:
    each, whole = given_batches
    end = an_end(whole=whole, called=any(isinstance(event, CallBegun) for batch in each for event in batch))
    assert seen(streamed(each, end)) == seen(at_once(each, end))


@given(batches())
def test_each_event_is_one_of_anthropics(given_batches: tuple[Batches, bool]) -> None:
    each, whole = given_batches
    known: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for event in events_of(each, an_end(whole=whole)):
        if event["type"] != "ping":
            known.validate_python(event)


def test_events_come_in_anthropics_order() -> None:
    each = [[Thought("hm", 0, 2)], [Said("a", 9, 10), Said("b", 10, 11)], [CallBegun(0, "ls"), CallArguments(0, "{}")]]
    begun = ["content_block_start", "content_block_delta", "content_block_stop"]
    thought = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    names = [event["type"] for event in events_of(each, WHOLE)]
    assert names == ["message_start", "ping", *thought, *begun, *begun, "message_delta", "message_stop"]


def test_parts_come_in_the_order_in_which_they_were_written() -> None:
    each = [[Said("a", 0, 1), CallBegun(0, "ls"), CallArguments(0, "{}"), Thought("b", 9, 10), Said("c", 20, 21)]]
    assert [block.type for block in at_once(each).content] == ["text", "tool_use", "thinking", "text"]


def test_a_call_that_was_cut_has_no_half_of_a_value() -> None:
    each = [[CallBegun(0, "ls"), CallArguments(0, '{"all": true, "path": "/home/m')]]
    (block,) = at_once(each, an_end(whole=False)).content
    assert block.input == {"all": True}


def test_thinking_that_is_not_to_be_shown_is_in_the_signature() -> None:
    each = [[Thought("hm", 0, 2), Said("a", 9, 10)]]
    for message in (streamed(each, shows_thinking=False), at_once(each, shows_thinking=False)):
        block = message.content[0]
        assert (block.thinking, block.signature) == ("", sealed("hm"))


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (an_end(whole=True), "end_turn", None),
        (an_end(whole=True, stop="END"), "stop_sequence", "END"),
        (an_end(whole=True, called=True), "tool_use", None),
        (an_end(whole=False), "max_tokens", None),
        (an_end(whole=False, context_full=True), "model_context_window_exceeded", None),
    ],
)
def test_a_message_tells_why_it_ended(end: Ended, reason: str, sequence: str | None) -> None:
    for message in (streamed([[Said("a", 0, 1)]], end), at_once([[Said("a", 0, 1)]], end)):
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


def test_tokens_that_were_cached_are_told_apart() -> None:
    usage = streamed([[Said("a", 0, 1)]]).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (15, 5, 9)
    assert usage.output_tokens_details.thinking_tokens == 2
