"""Tests of the outputs that canitoolcall recorded: each is parsed as its fixture demands, whole and in pieces.

A stream that was cut off within a call has events of that call. The call's arguments are never closed, so no client can
run the call: see `parse_stream`.
"""

from __future__ import annotations

import json

import pytest
from canitoolcall.chunking import DEFAULT_STRATEGIES, ChunkStrategy, split, split_text
from canitoolcall.fixtures import Fixture, load_fixtures
from canitoolcall.pytest_plugin import assert_conforms, assert_equivalent, family_for
from canitoolcall.results import ParsedToolCall, ParseResult

from pymtp import LLM, Model
from pymtp.chat import (
    ContentDelta,
    OutputEvent,
    OutputFormat,
    OutputParser,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStart,
    read_tools,
)

FIXTURES = load_fixtures(families=["qwen3-xml", "qwen3-hermes"])
STRATEGIES = [*DEFAULT_STRATEGIES, *(ChunkStrategy("char", seed) for seed in range(3))]
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # single tokens in Qwen's vocabularies

each_fixture = pytest.mark.parametrize("fixture", FIXTURES, ids=[fixture.id for fixture in FIXTURES])


def make_parser(fixture: Fixture) -> OutputParser:
    family = family_for(fixture)
    reference = family.reference_for(fixture.reference_model) if family else None
    prompt_end = fixture.generation_prompt or (reference.default_generation_prompt if reference else None) or ""
    return OutputFormat(None, prompt_end, tools=read_tools(fixture.tools)).parser()


def parse_whole(fixture: Fixture) -> ParseResult:
    parser = make_parser(fixture)
    parser.push(fixture.raw_output)
    parser.finish()
    output = parser.output
    calls = tuple(ParsedToolCall(call.name, call.arguments) for call in output.tool_calls)
    return ParseResult(content=output.content, reasoning_content=output.reasoning, tool_calls=calls)


def parse_stream(fixture: Fixture, pieces: list[str]) -> ParseResult:
    """Parse the output like a client that joins the events of a stream.

    If the output was cut off, a last call whose arguments are not valid JSON is left out: a client knows from the
    finish reason "length" that the call is incomplete.
    """
    parser = make_parser(fixture)
    events: list[OutputEvent] = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    text: dict[type[OutputEvent], str] = {ReasoningDelta: "", ContentDelta: ""}
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case ToolCallStart(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case ToolCallDelta(index, arguments):
                calls[index] = (calls[index][0], calls[index][1] + arguments)
            case _:
                text[type(event)] += event.text
    if fixture.truncated and calls and not is_json(calls[-1][1]):
        calls.pop()
    parsed = tuple(ParsedToolCall(name, arguments) for name, arguments in calls)
    return ParseResult(content=text[ContentDelta], reasoning_content=text[ReasoningDelta], tool_calls=parsed)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def pieces_of(fixture: Fixture, strategy: ChunkStrategy, model: Model) -> list[str]:
    """Split an output into pieces of one or several tokens: the shipped model's tokens, and Qwen's tags as tokens."""
    if strategy.kind == "char":
        return split_text(fixture.raw_output, strategy)
    tokens: list[bytes] = []
    rest = fixture.raw_output
    while rest:
        at, tag = min((at, tag) for tag in (*TAGS, "") if (at := rest.find(tag) if tag else len(rest)) >= 0)
        tokens += [model.token_bytes(token) for token in model.tokenize(rest[:at])]
        tokens += [tag.encode()] * bool(tag)
        rest = rest[at + len(tag) :]
    special = {tag.encode() for tag in TAGS}
    joined, pieces = b"", []
    for group in split(tokens, strategy, special):
        joined += b"".join(group)
        pieces.append(joined.decode(errors="ignore"))
        joined = joined[len(pieces[-1].encode()) :]
    assert "".join(pieces) == fixture.raw_output
    return pieces


def test_fixtures_cover_xml_and_hermes_calls() -> None:
    assert {fixture.family for fixture in FIXTURES} == {"qwen3-xml", "qwen3-hermes"}
    assert len(FIXTURES) > 90


@each_fixture
def test_recorded_output_is_parsed_as_the_fixture_demands(fixture: Fixture) -> None:
    assert_conforms(fixture, parse_whole(fixture))


@each_fixture
def test_recorded_output_is_parsed_to_the_same_result_in_streams(fixture: Fixture, llm: LLM) -> None:
    whole = parse_whole(fixture)
    for strategy in STRATEGIES:
        streamed = parse_stream(fixture, pieces_of(fixture, strategy, llm.model))
        assert_conforms(fixture, streamed)
        assert_equivalent(whole, streamed)
