"""Claims about the events of /v1/responses: a client that joins them has the response."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from helpers.answer_events import Batches, an_end, answers_with, batches
from hypothesis import given
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pymtp import SamplingParams
from pymtp.chat import CallArguments, CallBegun, Said, Thought
from pymtp.server.finish import Ended
from pymtp.server.http.ascii_json import AsciiJson
from pymtp.server.http.errors import Failure
from pymtp.server.http.named_events import named_events
from pymtp.server.message_builder import sealed
from pymtp.server.output_items import Part
from pymtp.server.responses import resource as response_resource
from pymtp.server.responses.store import ResponseStore, Stored
from pymtp.server.responses.write import ResponseWriter

BODY: dict[str, Any] = {"model": "demo", "input": "a"}
WHOLE = an_end(whole=True)
CUT = an_end(whole=False)


def events_of(each: Batches, end: Ended, **body: Any) -> list[dict[str, Any]]:
    writer = ResponseWriter(BODY | body, SamplingParams())
    events = writer.begin()
    for batch in each:
        events += writer.go_on(batch)
    return events + writer.end(end, {})


def response(each: Batches, end: Ended = WHOLE, **body: Any) -> dict[str, Any]:
    """What a client without a stream gets, but for names that are new each time."""
    writer = ResponseWriter(BODY | body, SamplingParams())
    writer.go_on([event for batch in each for event in batch])
    found: dict[str, Any] = writer.end(end, {})[-1]["response"]
    response_resource.Response.model_validate(found)
    return found


def test_what_a_request_is_told_of_itself_is_written_as_json_once() -> None:
    looks = 0

    class Parameters(dict[str, Any]):
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

    tool = {"type": "function", "name": "f", "parameters": Parameters(type="object"), "strict": None}
    writer = ResponseWriter(BODY | {"tools": [tool], "instructions": "Be brief."}, SamplingParams())
    begin, end = writer.begin(), writer.end(WHOLE, {})
    told = [json.loads(line[6:]) for line in named_events(begin + end).splitlines() if line.startswith(b"data: ")]
    ResponseStore().put(Stored(end[-1]["response"], []))
    assert looks == 1
    assert told == begin + end
    assert json.loads(AsciiJson(end[-1]["response"]).body) == end[-1]["response"]


def unnamed(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output, of nothing but what is new in each event."""
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


@given(batches())
def test_joined_events_are_the_response(given_batches: tuple[Batches, bool]) -> None:
    each, whole = given_batches
    events = events_of(each, an_end(whole=whole))
    assert joined(events) == events[-1]["response"]["output"]
    assert unnamed(joined(events)) == unnamed(response(each, an_end(whole=whole))["output"])


@given(batches())
def test_openais_client_joins_them(given_batches: tuple[Batches, bool]) -> None:
    each, _ = given_batches
    body = named_events(events_of(each, WHOLE))
    http = openai.DefaultHttpxClient(transport=answers_with(body, "text/event-stream"))
    client = openai.OpenAI(api_key="none", http_client=http)
    with client.responses.stream(model="demo", input="a") as stream:
        found = stream.get_final_response()
    assert found.output_text == "".join(event.text for batch in each for event in batch if isinstance(event, Said))


@given(batches())
def test_each_event_is_one_of_openais(given_batches: tuple[Batches, bool]) -> None:
    each, whole = given_batches
    known: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    events = events_of(each, an_end(whole=whole))
    for event in events:
        known.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_events_come_in_openais_order() -> None:
    each = [[Thought("hm", 0, 2)], [Said("a", 9, 10), Said("b", 10, 11)], [CallBegun(0, "ls"), CallArguments(0, "{}")]]
    names = [event["type"].removeprefix("response.") for event in events_of(each, WHOLE)]

    def content(name: str) -> list[str]:
        inner = ["content_part.added", f"{name}.delta", f"{name}.done", "content_part.done"]
        return ["output_item.added", *inner, "output_item.done"]

    call = ["function_call_arguments.delta", "function_call_arguments.done"]
    call = ["output_item.added", *call, "output_item.done"]
    assert names == ["created", "in_progress", *content("reasoning_text"), *content("output_text"), *call, "completed"]


def test_an_empty_answer_has_an_empty_message() -> None:
    (item,) = response([])["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_what_was_cut_is_incomplete() -> None:
    each = [[Said("a", 0, 1), CallBegun(0, "ls"), CallArguments(0, '{"path": "/ho')]]
    found = response(each, CUT)
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in found["output"]] == ["completed", "incomplete"]
    names = [event["type"] for event in events_of(each, CUT)]
    assert "response.function_call_arguments.done" not in names
    assert names[-1] == "response.incomplete"


def test_a_chat_that_goes_on_has_whole_calls_only() -> None:
    writer = ResponseWriter(BODY, SamplingParams())
    whole, cut = [CallBegun(0, "ls"), CallArguments(0, "{}")], [CallBegun(1, "rm"), CallArguments(1, '{"path": "/ho')]
    writer.go_on([Thought("hm", 0, 2), Said("a", 9, 10), *whole, *cut])
    writer.end(CUT, {})
    (message,) = writer.turns()
    assert (message["reasoning_content"], message["content"]) == ("hm", "a")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["ls"]


def test_thinking_is_sealed_where_it_is_asked_for() -> None:
    each = [[Thought("hm", 0, 2), Said("a", 9, 10)]]
    thought = response(each, include=["reasoning.encrypted_content"])["output"][0]
    assert thought["encrypted_content"] == sealed("hm")
    assert "encrypted_content" not in response(each)["output"][0]


@pytest.mark.parametrize(
    ("status", "code"), [(500, "server_error"), (504, "server_error"), (429, "rate_limit_exceeded")]
)
def test_a_failure_in_the_middle_is_the_last_event(status: int, code: str) -> None:
    writer = ResponseWriter(BODY, SamplingParams())
    writer.begin()
    writer.go_on([Said("a", 0, 1)])
    (event,) = writer.fail(Failure(status, "no more"))
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": code, "message": "no more"}
    assert event["response"]["output"][0]["status"] == "incomplete"
    response_resource.Response.model_validate(event["response"])
    Response.model_validate(event["response"])


def test_what_was_asked_for_is_told() -> None:
    asked = {"instructions": "Be brief.", "metadata": {"a": "b"}, "store": False, "reasoning": {"effort": "low"}}
    asked |= {"tools": [{"type": "web_search"}, {"type": "function", "name": "ls", "parameters": {}}]}
    found = response([], **asked)
    assert {name: found[name] for name in ("instructions", "metadata", "store")} == {
        name: asked[name] for name in ("instructions", "metadata", "store")
    }
    assert found["reasoning"] == {"effort": "low", "summary": None}
    assert [tool["name"] for tool in found["tools"]] == ["ls"]


def test_a_call_within_a_namespace_is_told_by_both_names() -> None:
    tool = {"type": "function", "name": "ls", "parameters": {}}
    asked = {"tools": [{"type": "namespace", "name": "files", "description": "Files.", "tools": [tool]}]}
    found = response([[CallBegun(0, "files__ls"), CallArguments(0, "{}")]], **asked)
    assert (found["output"][0]["name"], found["output"][0]["namespace"]) == ("ls", "files")
    assert found["tools"][0]["tools"][0]["name"] == "ls"


def test_usage_counts_what_was_cached_and_thought() -> None:
    usage = Response.model_validate(response([])).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (20, 9, 29)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (5, 2)


def test_a_delta_costs_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = []
    monkeypatch.setattr(Part, "text", property(lambda part: joins.append(part) or "".join(part.pieces)))
    writer = ResponseWriter(BODY, SamplingParams())
    writer.go_on([Said("a", 0, 1)])
    before = len(joins)
    for i in range(1, 100):
        writer.go_on([Said("a", i, i + 1)])
    assert len(joins) == before
