"""Tests of outputs that arrive in pieces: the parsed output does not depend on the pieces."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymtp.chat import ContentDelta, OutputEvent, OutputParser, ReasoningDelta, Tool, ToolCallDelta, ToolCallStart, tags
from pymtp.chat.tags import TagScanner

FUNCTION = {
    "properties": {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": ["string", "null"]},
        "d": {"type": "object"},
    }
}
TOOLS = [Tool("f", "", FUNCTION), Tool("g", "", {"properties": {"x": {}}})]

# parts of outputs, complete and broken ones, which the tests join to outputs
PARTS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "<function=g>", "<function=h>"),
    *("</function>", "<parameter=a>", "<parameter=b>", "<parameter=c>", "<parameter=zz>", "</parameter>", "\n", "\n\n"),
    *(" ", "text", "<", "</", "<tool_", "1", "None", '{"k": [1]}', "{'k': True}", "é🙂", '"', "\\"),
    *('{"name": "f", "arguments": {"a": "x"}}', '{"name": "g"', "{", "}", "\r\n", "<function=", ">"),
    "<tool_call>\n<function=f>\n<parameter=a>\n",
    "<tool_call>\r\n<function='f'>\r\n<parameter= a>\r\n",
    "\r\n</parameter>\r\n</parameter>\r\n</function>\r\n</function>",
    "\n</parameter>\n</function>\n</tool_call>",
    "\n</parameter>\n<parameter=b>\n",
    "<tool_call>\n{",
]
texts = st.lists(st.sampled_from(PARTS), max_size=25).map("".join)
options = st.fixed_dictionaries({name: st.booleans() for name in ("thinking", "separate_reasoning", "json_content")})


def events_of(
    pieces: list[str], tools: list[Tool] = TOOLS, **option_values: bool
) -> tuple[OutputParser, list[OutputEvent]]:
    parser = OutputParser(tools, **option_values)
    events = [event for piece in pieces for event in parser.push(piece)]
    return parser, events + parser.finish()


def join_events(events: list[OutputEvent]) -> list[tuple[Any, ...]]:
    """Join consecutive events of one kind."""
    found: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case ToolCallStart(index, name):
                found.append((ToolCallStart, index, name))
            case ToolCallDelta(index, text):
                if found and found[-1][:2] == (ToolCallDelta, index):
                    found[-1] = (*found[-1][:2], found[-1][2] + text)
                else:
                    found.append((ToolCallDelta, index, text))
            case ReasoningDelta(text, start, end) | ContentDelta(text, start, end):
                if found and found[-1][0] is type(event) and found[-1][3] == start:
                    found[-1] = (type(event), found[-1][1] + text, found[-1][2], end)
                else:
                    found.append((type(event), text, start, end))
    return found


@settings(max_examples=120)
@given(texts, options, st.integers(0, 2**32))
def test_parsed_output_does_not_depend_on_the_pieces(text: str, option_values: dict[str, bool], seed: int) -> None:
    whole, events = events_of([text], **option_values)
    for longest in (1, 3, 12):
        random, cuts = Random(seed), [0]
        while cuts[-1] < len(text):
            cuts.append(cuts[-1] + random.randint(1, longest))
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        parser, other = events_of(pieces, **option_values)
        assert parser.output == whole.output
        assert join_events(other) == join_events(events)


@pytest.mark.parametrize("before", ["", "<tool_call>"])
@pytest.mark.parametrize("between", ["", "\n", "\r\n"])
def test_repeated_ends_of_a_function_are_no_content_in_any_pieces(before: str, between: str) -> None:
    text = f"{before}<function=f>{between.join(['</function>'] * 3)}{between}</tool_call>{between}</func"
    for pieces in ([text], [*text]):
        output = events_of(pieces)[0].output
        assert [(call.name, call.arguments) for call in output.tool_calls] == [("f", "{}")]
        assert output.content is None


@settings(max_examples=120)
@given(texts, options)
def test_events_are_slices_of_the_text_and_add_up_to_the_output(text: str, option_values: dict[str, bool]) -> None:
    parser, events = events_of([text], **option_values)
    output = parser.output
    each: dict[int, str] = {}
    last_end = 0
    for event in events:
        match event:
            case ReasoningDelta(part, start, end) | ContentDelta(part, start, end):
                assert part == text[start:end]
                assert last_end <= start < end
                last_end = end
            case ToolCallStart(index, _):
                assert index == len(each)
                each[index] = ""
            case ToolCallDelta(index, part):
                assert index == len(each) - 1
                assert part
                each[index] += part
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == (output.reasoning or "")
    assert "".join(event.text for event in events if isinstance(event, ContentDelta)) == (output.content or "")
    begun = [event.name for event in events if isinstance(event, ToolCallStart)]
    calls = output.tool_calls if output.unfinished_call is None else (*output.tool_calls, output.unfinished_call)
    assert [(call.name, call.arguments) for call in calls] == list(zip(begun, each.values(), strict=True))
    for call in output.tool_calls:
        assert isinstance(json.loads(call.arguments, object_pairs_hook=without_duplicates), dict)


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


@settings(max_examples=80)
@given(texts, options)
def test_parser_without_tools_finds_no_calls(text: str, option_values: dict[str, bool]) -> None:
    parser, _ = events_of([text], [], **option_values)
    assert not parser.output.tool_calls
    assert parser.output.unfinished_call is None
    if not option_values["separate_reasoning"]:
        assert parser.output.content == (text or None)


REPEATED_PARTS = [
    "a",
    "<",
    "\n",
    " ",
    "</",
    "\n<",
    "<tool_call>",
    "<tool_call>{",
    "<think>",
    "</parameter>\n",
    "</parameter>",
    "</function>\n",
    "\r",
    "<function=f>",
]


@pytest.mark.parametrize("part", REPEATED_PARTS)
@pytest.mark.parametrize("before", ["", "<tool_call>\n<function=f>\n<parameter=a>\n", '<tool_call>{"name": "'])
def test_text_in_which_many_tags_may_have_begun_takes_linear_time(
    before: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check long texts, whole and character by character. If the time was quadratic, they would take 15 seconds."""
    scanned, scan = [0], TagScanner.scan

    def counted(scanner: TagScanner, text: str, *args: Any) -> Any:
        scanned[0] += len(text)
        return scan(scanner, text, *args)

    monkeypatch.setattr(TagScanner, "scan", counted)
    whole = before + part * (25_000 // len(part))
    begin = time.monotonic()
    parser, _ = events_of([whole])
    assert time.monotonic() - begin < 10
    assert sum(map(len, (parser.output.content or "", parser.output.reasoning or ""))) <= len(whole)
    limit = 512
    monkeypatch.setattr(tags, "MAX_TAG_LENGTH", limit)  # an eighth: the text then takes an eighth of the calls
    text = before + part * (3 * limit // len(part))
    scanned[0] = 0
    events_of([*text])
    assert scanned[0] <= (limit + 1) * len(text)
