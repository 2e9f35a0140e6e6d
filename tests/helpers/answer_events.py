"""Answers as a model may write them: events in batches, as a stream's updates bring them."""

from __future__ import annotations

import itertools
import json

import httpx2
from hypothesis import strategies as st

from pymtp.chat import CallArguments, CallBegun, Event, Said, Thought
from pymtp.server.finish import Ended

Batches = list[list[Event]]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda each: st.lists(each, max_size=3),
    max_leaves=4,
)


def cut(text: str, data: st.DataObject) -> list[str]:
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=4), label="cuts") | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Batches, bool]:
    """Events of an answer, in batches, and whether the answer is whole: otherwise it was cut somewhere."""
    data = draw(st.data())
    events: list[Event] = []
    at = calls = 0
    for kind in draw(st.lists(st.sampled_from(["thought", "said", "call"]), max_size=5)):
        if kind == "call":
            events.append(CallBegun(calls, draw(st.sampled_from(["get_weather", "ls"]))))
            arguments = json.dumps(draw(st.dictionaries(TEXT, JSON, max_size=3)), ensure_ascii=False)
            events += [CallArguments(calls, piece) for piece in cut(arguments, data)]
            calls += 1
            continue
        for piece in cut(draw(TEXT), data):
            make = Thought if kind == "thought" else Said
            events.append(make(piece, at, at + len(piece)))
            at += len(piece)
        at += 8  # a tag
    whole = draw(st.booleans())
    events = events if whole else events[: draw(st.integers(0, len(events)))]
    places = sorted(draw(st.sets(st.integers(0, len(events)), max_size=6)) | {0, len(events)})
    return [events[start:end] for start, end in itertools.pairwise(places)], whole


def an_end(*, whole: bool, called: bool = False, stop: str | None = None, context_full: bool = False) -> Ended:
    reason = ("tool_calls" if called else "stop") if whole else "length"
    return Ended(reason, stop, context_full, prompt=20, cached=5, written=9, thought=2)


def answers_with(body: bytes, content_type: str) -> httpx2.MockTransport:
    """What a client talks to in place of a server."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": content_type}, content=body)

    return httpx2.MockTransport(answer)
