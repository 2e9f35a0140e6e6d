"""Random output events in batches, as the deltas of a stream bring them."""

from __future__ import annotations

import itertools
import json

import httpx2
from hypothesis import strategies as st

from pymtp.chat import ContentDelta, OutputEvent, ReasoningDelta, ToolCallDelta, ToolCallStart
from pymtp.server.event_response import FinishInfo

Batches = list[list[OutputEvent]]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda each: st.lists(each, max_size=3),
    max_leaves=4,
)


def split_anywhere(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=4), label="cuts") | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


@st.composite
def event_batches(draw: st.DrawFn) -> tuple[Batches, bool]:
    """Draw the events of an output in batches, and whether the output is complete: otherwise it was cut somewhere."""
    data = draw(st.data())
    events: list[OutputEvent] = []
    at = calls = 0
    for kind in draw(st.lists(st.sampled_from(["thought", "said", "call"]), max_size=5)):
        if kind == "call":
            events.append(ToolCallStart(calls, draw(st.sampled_from(["get_weather", "ls"]))))
            arguments = json.dumps(draw(st.dictionaries(TEXT, JSON, max_size=3)), ensure_ascii=False)
            events += [ToolCallDelta(calls, piece) for piece in split_anywhere(arguments, data)]
            calls += 1
            continue
        for piece in split_anywhere(draw(TEXT), data):
            make = ReasoningDelta if kind == "thought" else ContentDelta
            events.append(make(piece, at, at + len(piece)))
            at += len(piece)
        at += 8  # a tag
    whole = draw(st.booleans())
    events = events if whole else events[: draw(st.integers(0, len(events)))]
    cuts = sorted(draw(st.sets(st.integers(0, len(events)), max_size=6)) | {0, len(events)})
    return [events[start:end] for start, end in itertools.pairwise(cuts)], whole


def finish_info(
    *, whole: bool, called: bool = False, stop: str | None = None, context_full: bool = False
) -> FinishInfo:
    reason = ("tool_calls" if called else "stop") if whole else "length"
    return FinishInfo(
        reason, stop, context_full, prompt_tokens=20, cached_tokens=5, completion_tokens=9, thinking_tokens=2
    )


def fixed_response(body: bytes, content_type: str) -> httpx2.MockTransport:
    """Return a transport that answers every request with the same body, in place of a server."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": content_type}, content=body)

    return httpx2.MockTransport(answer)
