"""Claims about an answer that comes in pieces: it is the same in any."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymtp.chat import AnswerReader, CallArguments, CallBegun, Event, Said, Thought, Tool
from pymtp.chat.tags import Marks

FUNCTION = {
    "properties": {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": ["string", "null"]},
        "d": {"type": "object"},
    }
}
TOOLS = [Tool("f", "", FUNCTION), Tool("g", "", {"properties": {"x": {}}})]

# parts of answers, whole and broken
PARTS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "<function=g>", "<function=h>"),
    *("</function>", "<parameter=a>", "<parameter=b>", "<parameter=c>", "<parameter=zz>", "</parameter>", "\n", "\n\n"),
    *(" ", "text", "<", "</", "<tool_", "1", "None", '{"k": [1]}', "{'k': True}", "é🙂", '"', "\\"),
    *('{"name": "f", "arguments": {"a": "x"}}', '{"name": "g"', "{", "}", "\r\n", "<function=", ">"),
    "<tool_call>\n<function=f>\n<parameter=a>\n",
    "\n</parameter>\n</function>\n</tool_call>",
    "\n</parameter>\n<parameter=b>\n",
    "<tool_call>\n{",
]
texts = st.lists(st.sampled_from(PARTS), max_size=25).map("".join)
ways = st.fixed_dictionaries({name: st.booleans() for name in ("thinking", "splits_thinking", "json_content")})


def events_of(pieces: list[str], tools: list[Tool] = TOOLS, **way: bool) -> tuple[AnswerReader, list[Event]]:
    reader = AnswerReader(tools, **way)
    events = [event for piece in pieces for event in reader.push(piece)]
    return reader, events + reader.finish()


def joined(events: list[Event]) -> list[tuple[Any, ...]]:
    """Those of one kind in a row as one."""
    found: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case CallBegun(index, name):
                found.append((CallBegun, index, name))
            case CallArguments(index, text):
                if found and found[-1][:2] == (CallArguments, index):
                    found[-1] = (*found[-1][:2], found[-1][2] + text)
                else:
                    found.append((CallArguments, index, text))
            case Thought(text, start, end) | Said(text, start, end):
                if found and found[-1][0] is type(event) and found[-1][3] == start:
                    found[-1] = (type(event), found[-1][1] + text, found[-1][2], end)
                else:
                    found.append((type(event), text, start, end))
    return found


@settings(max_examples=500)
@given(texts, ways, st.integers(0, 2**32))
def test_an_answer_is_the_same_in_any_pieces(text: str, way: dict[str, bool], seed: int) -> None:
    whole, events = events_of([text], **way)
    for longest in (1, 3, 12):
        random, cuts = Random(seed), [0]
        while cuts[-1] < len(text):
            cuts.append(cuts[-1] + random.randint(1, longest))
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        reader, other = events_of(pieces, **way)
        assert reader.answer == whole.answer
        assert joined(other) == joined(events)


@settings(max_examples=500)
@given(texts, ways)
def test_events_are_the_answer_and_slices_of_the_text(text: str, way: dict[str, bool]) -> None:
    reader, events = events_of([text], **way)
    answer = reader.answer
    each: dict[int, str] = {}
    taken = 0
    for event in events:
        match event:
            case Thought(part, start, end) | Said(part, start, end):
                assert part == text[start:end]
                assert taken <= start < end
                taken = end
            case CallBegun(index, _):
                assert index == len(each)
                each[index] = ""
            case CallArguments(index, part):
                assert index == len(each) - 1
                assert part
                each[index] += part
    assert "".join(event.text for event in events if isinstance(event, Thought)) == (answer.thinking or "")
    assert "".join(event.text for event in events if isinstance(event, Said)) == (answer.content or "")
    begun = [event.name for event in events if isinstance(event, CallBegun)]
    calls = answer.calls if answer.unfinished is None else (*answer.calls, answer.unfinished)
    assert [(call.name, call.arguments) for call in calls] == list(zip(begun, each.values(), strict=True))
    for call in answer.calls:
        assert isinstance(json.loads(call.arguments, object_pairs_hook=no_twice), dict)


def no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


@settings(max_examples=300)
@given(texts, ways)
def test_without_tools_all_is_text(text: str, way: dict[str, bool]) -> None:
    reader, _ = events_of([text], [], **way)
    assert not reader.answer.calls
    assert reader.answer.unfinished is None
    if not way["splits_thinking"]:
        assert reader.answer.content == (text or None)


ENDLESS = ["a", "<", "\n", " ", "</", "\n<", "<tool_call>", "<tool_call>{", "<think>", "</parameter>\n", "<function=f>"]


@pytest.mark.parametrize("part", ENDLESS)
@pytest.mark.parametrize("before", ["", "<tool_call>\n<function=f>\n<parameter=a>\n", '<tool_call>{"name": "'])
def test_each_character_is_looked_at_a_few_times(before: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the text may yet become."""
    steps, step = [0], Marks.step

    def counted(marks: Marks, threads: Any, character: str) -> Any:
        steps[0] += 1
        return step(marks, threads, character)

    monkeypatch.setattr(Marks, "step", counted)
    text = before + part * (4000 // len(part))
    reader, _ = events_of([*text])
    assert steps[0] < 4 * len(text)
    assert sum(map(len, (reader.answer.content or "", reader.answer.thinking or ""))) <= len(text)
