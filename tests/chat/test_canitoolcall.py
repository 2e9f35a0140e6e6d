"""Claims about canitoolcall's recorded answers: what has to be read of each is, whole and in its pieces.

A stream that was cut within a call has begun it. As its arguments are never closed, no client can run it: see
`read_stream`.
"""

from __future__ import annotations

import json

import pytest
from canitoolcall.chunking import DEFAULT_STRATEGIES, ChunkStrategy, split, split_text
from canitoolcall.fixtures import Fixture, load_fixtures
from canitoolcall.pytest_plugin import assert_conforms, assert_equivalent, family_for
from canitoolcall.results import ParsedToolCall, ParseResult

from pymtp import LLM, Model
from pymtp.chat import AnswerFormat, AnswerReader, CallArguments, CallBegun, Event, Said, Thought, read_tools

FIXTURES = load_fixtures(families=["qwen3-xml", "qwen3-hermes"])
STRATEGIES = [*DEFAULT_STRATEGIES, *(ChunkStrategy("char", seed) for seed in range(3))]
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # tokens of their own in Qwen's vocabularies

each = pytest.mark.parametrize("fixture", FIXTURES, ids=[fixture.id for fixture in FIXTURES])


def reader_of(fixture: Fixture) -> AnswerReader:
    family = family_for(fixture)
    reference = family.reference_for(fixture.reference_model) if family else None
    prompt_end = fixture.generation_prompt or (reference.default_generation_prompt if reference else None) or ""
    return AnswerFormat(None, prompt_end, tools=read_tools(fixture.tools)).reader()


def read_whole(fixture: Fixture) -> ParseResult:
    reader = reader_of(fixture)
    reader.push(fixture.raw_output)
    reader.finish()
    answer = reader.answer
    calls = tuple(ParsedToolCall(call.name, call.arguments) for call in answer.calls)
    return ParseResult(content=answer.content, reasoning_content=answer.thinking, tool_calls=calls)


def read_stream(fixture: Fixture, pieces: list[str]) -> ParseResult:
    """What a client has that joins the events. Of a text that was cut, the last call is not run where its arguments are
    no JSON, which is what the finish reason "length" is for."""
    reader = reader_of(fixture)
    events: list[Event] = [event for piece in pieces for event in reader.push(piece)] + reader.finish()
    text: dict[type[Event], str] = {Thought: "", Said: ""}
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case CallBegun(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index, arguments):
                calls[index] = (calls[index][0], calls[index][1] + arguments)
            case _:
                text[type(event)] += event.text
    if fixture.truncated and calls and not is_json(calls[-1][1]):
        calls.pop()
    parsed = tuple(ParsedToolCall(name, arguments) for name, arguments in calls)
    return ParseResult(content=text[Said], reasoning_content=text[Thought], tool_calls=parsed)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def pieces_of(fixture: Fixture, strategy: ChunkStrategy, model: Model) -> list[str]:
    """Of one or several tokens, those of the shipped model with Qwen's marks among them."""
    if strategy.kind == "char":
        return split_text(fixture.raw_output, strategy)
    tokens: list[bytes] = []
    rest = fixture.raw_output
    while rest:
        at, mark = min((at, mark) for mark in (*MARKS, "") if (at := rest.find(mark) if mark else len(rest)) >= 0)
        tokens += [model.token_bytes(token) for token in model.tokenize(rest[:at])]
        tokens += [mark.encode()] * bool(mark)
        rest = rest[at + len(mark) :]
    special = {mark.encode() for mark in MARKS}
    joined, pieces = b"", []
    for group in split(tokens, strategy, special):
        joined += b"".join(group)
        pieces.append(joined.decode(errors="ignore"))
        joined = joined[len(pieces[-1].encode()) :]
    assert "".join(pieces) == fixture.raw_output
    return pieces


def test_there_are_fixtures_of_both_forms() -> None:
    assert {fixture.family for fixture in FIXTURES} == {"qwen3-xml", "qwen3-hermes"}
    assert len(FIXTURES) > 90


@each
def test_a_recorded_answer_is_read_as_it_has_to_be(fixture: Fixture) -> None:
    assert_conforms(fixture, read_whole(fixture))


@each
@pytest.mark.parametrize("strategy", STRATEGIES, ids=[strategy.id for strategy in STRATEGIES])
def test_a_recorded_answer_is_the_same_in_a_stream(fixture: Fixture, strategy: ChunkStrategy, llm: LLM) -> None:
    streamed = read_stream(fixture, pieces_of(fixture, strategy, llm.model))
    assert_conforms(fixture, streamed)
    assert_equivalent(read_whole(fixture), streamed)
