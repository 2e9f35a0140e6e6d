"""Tests of the events of /v1/responses: a client that joins the events gets the whole response."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from helpers.late import openai
from helpers.output_events import Batches, event_batches, finish_info, fixed_response
from hypothesis import given, settings
from pydantic import TypeAdapter

from pymtp import SamplingParams
from pymtp.chat import ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallStart
from pymtp.server.event_response import FinishInfo
from pymtp.server.http.errors import ErrorInfo
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.sse import encode_events
from pymtp.server.message_builder import encode_thinking
from pymtp.server.output_items import OutputItem
from pymtp.server.responses import types as response_types
from pymtp.server.responses.store import ResponseStore, StoredResponse
from pymtp.server.responses.write import ResponseWriter

BODY: dict[str, Any] = {"model": "demo", "input": "a"}
WHOLE = finish_info(whole=True)
CUT = finish_info(whole=False)


@cache
def known_responses() -> TypeAdapter[Any]:
    return TypeAdapter(response_types.Response)


@cache
def known_events() -> TypeAdapter[Any]:
    """Return a validator of OpenAI's events, which takes as long to make as dozens of events to validate."""
    return TypeAdapter(openai.types.responses.ResponseStreamEvent)


def events_of(each: Batches, end: FinishInfo, **body: Any) -> list[dict[str, Any]]:
    writer = ResponseWriter(BODY | body, SamplingParams())
    events = writer.begin()
    for batch in each:
        events += writer.push(batch)
    return events + writer.end(end)


def response(each: Batches, end: FinishInfo = WHOLE, **body: Any) -> dict[str, Any]:
    """Return the whole response, which the last event has."""
    writer = ResponseWriter(BODY | body, SamplingParams())
    writer.push([event for batch in each for event in batch])
    found: dict[str, Any] = writer.end(end)[-1]["response"]
    known_responses().validate_python(found)
    return found


def test_repeated_fields_are_encoded_once() -> None:
    looks = 0

    class Parameters(dict[str, Any]):
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

    tool = {"type": "function", "name": "f", "parameters": Parameters(type="object"), "strict": None}
    writer = ResponseWriter(BODY | {"tools": [tool], "instructions": "Be brief."}, SamplingParams())
    begin, end = writer.begin(), writer.end(WHOLE)
    reported = [json.loads(line[6:]) for line in encode_events(begin + end).splitlines() if line.startswith(b"data: ")]
    ResponseStore().put(StoredResponse(end[-1]["response"], []))
    assert looks == 1
    assert reported == begin + end
    assert json.loads(AsciiJSONResponse(end[-1]["response"]).body) == end[-1]["response"]


def unnamed(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the output that a client gets by joining the new text of each event."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                items.append(event["item"] | {"content": []})
            case "response.content_part.added":
                items[event["output_index"]]["content"].append(dict(event["part"]))
            case "response.output_text.delta" | "response.reasoning_text.delta":
                items[event["output_index"]]["content"][event["content_index"]]["text"] += event["delta"]
            case "response.function_call_arguments.delta":
                items[event["output_index"]]["arguments"] += event["delta"]
            case "response.output_item.done":
                items[event["output_index"]]["status"] = event["item"]["status"]
    for item in items:
        if item["type"] == "function_call":
            del item["content"]
    return items


@given(event_batches())
def test_joined_events_equal_the_response(given_batches: tuple[Batches, bool]) -> None:
    each, whole = given_batches
    events = events_of(each, finish_info(whole=whole))
    assert joined(events) == events[-1]["response"]["output"]
    assert unnamed(joined(events)) == unnamed(response(each, finish_info(whole=whole))["output"])


@settings(max_examples=10)
@given(event_batches())
def test_openai_client_joins_the_events(given_batches: tuple[Batches, bool]) -> None:
    each, _ = given_batches
    body = encode_events(events_of(each, WHOLE))
    http = openai.DefaultHttpxClient(transport=fixed_response(body, "text/event-stream"))
    client = openai.OpenAI(api_key="none", http_client=http)
    with client.responses.stream(model="demo", input="a") as stream:
        found = stream.get_final_response()
    assert found.output_text == "".join(
        event.text for batch in each for event in batch if isinstance(event, ContentDelta)
    )


@given(event_batches())
def test_events_validate_as_openais_types(given_batches: tuple[Batches, bool]) -> None:
    each, whole = given_batches
    known = known_events()
    events = events_of(each, finish_info(whole=whole))
    for event in events:
        known.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_events_come_in_openais_order() -> None:
    each = [
        [ReasoningDelta("hm", 0, 2)],
        [ContentDelta("a", 9, 10), ContentDelta("b", 10, 11)],
        [ToolCallStart(0, "ls"), ToolCallDelta(0, "{}")],
    ]
    names = [event["type"].removeprefix("response.") for event in events_of(each, WHOLE)]

    def content(name: str) -> list[str]:
        inner = ["content_part.added", f"{name}.delta", f"{name}.done", "content_part.done"]
        return ["output_item.added", *inner, "output_item.done"]

    call = ["function_call_arguments.delta", "function_call_arguments.done"]
    call = ["output_item.added", *call, "output_item.done"]
    assert names == ["created", "in_progress", *content("reasoning_text"), *content("output_text"), *call, "completed"]


def test_empty_output_has_an_empty_message() -> None:
    (item,) = response([])["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_cut_off_output_is_incomplete() -> None:
    each = [[ContentDelta("a", 0, 1), ToolCallStart(0, "ls"), ToolCallDelta(0, '{"path": "/ho')]]
    found = response(each, CUT)
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in found["output"]] == ["completed", "incomplete"]
    names = [event["type"] for event in events_of(each, CUT)]
    assert "response.function_call_arguments.done" not in names
    assert names[-1] == "response.incomplete"


def test_messages_for_a_continued_chat_have_only_complete_calls() -> None:
    writer = ResponseWriter(BODY, SamplingParams())
    whole, cut = (
        [ToolCallStart(0, "ls"), ToolCallDelta(0, "{}")],
        [ToolCallStart(1, "rm"), ToolCallDelta(1, '{"path": "/ho')],
    )
    writer.push([ReasoningDelta("hm", 0, 2), ContentDelta("a", 9, 10), *whole, *cut])
    writer.end(CUT)
    (message,) = writer.messages()
    assert (message["reasoning_content"], message["content"]) == ("hm", "a")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["ls"]


def test_thinking_is_encoded_on_request() -> None:
    each = [[ReasoningDelta("hm", 0, 2), ContentDelta("a", 9, 10)]]
    thought = response(each, include=["reasoning.encrypted_content"])["output"][0]
    assert thought["encrypted_content"] == encode_thinking("hm")
    assert "encrypted_content" not in response(each)["output"][0]


@pytest.mark.parametrize(
    ("status", "code"), [(500, "server_error"), (504, "server_error"), (429, "rate_limit_exceeded")]
)
def test_response_that_fails_ends_with_a_failed_event(status: int, code: str) -> None:
    writer = ResponseWriter(BODY, SamplingParams())
    writer.begin()
    writer.push([ContentDelta("a", 0, 1)])
    (event,) = writer.fail(ErrorInfo(status, "no more"))
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": code, "message": "no more"}
    assert event["response"]["output"][0]["status"] == "incomplete"
    known_responses().validate_python(event["response"])
    openai.types.responses.Response.model_validate(event["response"])


def test_response_repeats_fields_of_the_request() -> None:
    request_body = {"instructions": "Be brief.", "metadata": {"a": "b"}, "store": False, "reasoning": {"effort": "low"}}
    request_body |= {"tools": [{"type": "web_search"}, {"type": "function", "name": "ls", "parameters": {}}]}
    found = response([], **request_body)
    assert {name: found[name] for name in ("instructions", "metadata", "store")} == {
        name: request_body[name] for name in ("instructions", "metadata", "store")
    }
    assert found["reasoning"] == {"effort": "low", "summary": None}
    assert [tool["name"] for tool in found["tools"]] == ["ls"]


def test_tool_call_in_a_namespace_has_both_names() -> None:
    tool = {"type": "function", "name": "ls", "parameters": {}}
    request_body = {"tools": [{"type": "namespace", "name": "files", "description": "Files.", "tools": [tool]}]}
    found = response([[ToolCallStart(0, "files__ls"), ToolCallDelta(0, "{}")]], **request_body)
    assert (found["output"][0]["name"], found["output"][0]["namespace"]) == ("ls", "files")
    assert found["tools"][0]["tools"][0]["name"] == "ls"


def test_usage_counts_cached_and_reasoning_tokens() -> None:
    usage = openai.types.responses.Response.model_validate(response([])).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (20, 9, 29)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (5, 2)


def test_delta_does_not_join_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = []
    monkeypatch.setattr(OutputItem, "text", property(lambda item: joins.append(item) or "".join(item.pieces)))
    writer = ResponseWriter(BODY, SamplingParams())
    writer.push([ContentDelta("a", 0, 1)])
    before = len(joins)
    for i in range(1, 100):
        writer.push([ContentDelta("a", i, i + 1)])
    assert len(joins) == before
