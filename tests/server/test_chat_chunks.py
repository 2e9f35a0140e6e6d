"""Tests of the chunks of a chat completion's stream, and of the origins (draft steps) of characters."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pymtp import LLM
from pymtp.chat import ContentDelta, OutputEvent, ReasoningDelta, ToolCallDelta, ToolCallStart
from pymtp.engine.deltas import CompletionDelta
from pymtp.engine.request import Piece
from pymtp.openai.chunks import ChatChunks, OriginTracker
from pymtp.server.openai.types import ChatChunk

CHUNKS = TypeAdapter(ChatChunk)


def chunks(llm: LLM, n: int = 1, **keywords: bool) -> ChatChunks:
    return ChatChunks(llm.model, 'a "name"', n, **({"include_usage": False, "origins": False} | keywords))


def events(data: bytes) -> list[dict[str, Any]]:
    """Parse the chunks of a stream, check each chunk against the schema, and return the chunks."""
    found = []
    for event in data.split(b"\n\n")[:-1]:
        assert event.startswith(b"data: ")
        CHUNKS.validate_json(event[6:])
        found.append(json.loads(event[6:]))
    return found


def test_chat_chunks_send_the_role_first_and_join_events(llm: LLM) -> None:
    made = chunks(llm)
    delta = CompletionDelta(
        0, [], None, [ReasoningDelta("a", 0, 1), ContentDelta('b"\n', 2, 5), ContentDelta("ü", 5, 6)]
    )
    first, second = events(made.chunk(delta))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert second["choices"][0]["delta"] == {"reasoning_content": "a", "reasoning": "a", "content": 'b"\nü'}
    assert (second["id"], second["model"]) == (first["id"], 'a "name"')
    (third,) = events(made.chunk(delta))
    assert "role" not in third["choices"][0]["delta"]


def test_tool_call_name_and_id_are_sent_once(llm: LLM) -> None:
    made = chunks(llm)
    begun: list[OutputEvent] = [
        ToolCallStart(0, "f"),
        ToolCallDelta(0, '{"a":'),
        ToolCallDelta(0, " 1}"),
        ToolCallStart(1, "g"),
    ]
    _, one = events(made.chunk(CompletionDelta(0, [], None, begun)))
    first, second = one["choices"][0]["delta"]["tool_calls"]
    assert (first["index"], first["function"]) == (0, {"name": "f", "arguments": '{"a": 1}'})
    assert (second["index"], second["function"]) == (1, {"name": "g", "arguments": ""})
    assert first["id"] != second["id"]
    (two,) = events(made.chunk(CompletionDelta(0, [], None, [ToolCallDelta(1, "{}")])))
    assert two["choices"][0]["delta"]["tool_calls"] == [{"index": 1, "function": {"arguments": "{}"}}]


def test_delta_without_text_makes_no_chunk(llm: LLM) -> None:
    made = chunks(llm, 2)
    made.chunk(CompletionDelta(0, [], None, []))
    assert made.chunk(CompletionDelta(0, [Piece("", [5])], None, [])) == b""
    # The first chunk of each completion has the role, even without text.
    assert len(events(made.chunk(CompletionDelta(1, [Piece("", [5])], None, [])))) == 1


def test_character_has_the_origin_of_the_token_that_completes_it(llm: LLM) -> None:
    tokens = llm.model.tokenize("aö")  # the last two tokens are the bytes of one character
    assert [llm.model.token_bytes(token) for token in tokens] == [b"a", b"\xc3", b"\xb6"]
    origins = OriginTracker(llm.model)
    first = origins.push([Piece("a", tokens[:2], drafted=2, accepted=2)], [ContentDelta("a", 0, 1)])
    second = origins.push([Piece("ö", tokens[2:], drafted=3, accepted=0)], [ContentDelta("ö", 1, 2)])
    assert first == {"origins": [["content", 1, 1]], "rounds": [[2, 2, 0, 0]]}
    assert second == {"origins": [["content", 1, 0]], "rounds": [[3, 0, 0, 0]]}
    assert origins.push([], []) is None


def test_drafts_from_text_follow_those_of_the_head_and_are_told_apart(llm: LLM) -> None:
    piece = Piece(
        "abcd", llm.model.tokenize("ab")[:1] * 4, drafted=9, accepted=3, drafted_by_text=7, accepted_by_text=2
    )
    text = llm.model.detokenize(piece.token_ids)
    n = len(text) // 4
    found = OriginTracker(llm.model).push([piece], [ContentDelta(text, 0, 4 * n)])
    assert found == {
        "origins": [["content", n, 1], ["content", 2 * n, "text"], ["content", n, 0]],
        "rounds": [[9, 3, 7, 2]],
    }


@given(st.data())
def test_origins_match_the_tokens_however_pieces_and_events_are_split(llm: LLM, data: st.DataObject) -> None:
    text = data.draw(st.text("abc öß€😀\n", min_size=1, max_size=30))
    tokens = llm.model.tokenize(text)
    ends: list[tuple[int, int | str]] = []  # for each token: the length of the text up to its end, and its draft step
    origins, pieces, read = OriginTracker(llm.model), [], 0
    while read < len(tokens):
        taken = tokens[read : read + data.draw(st.integers(1, 4))]
        accepted = data.draw(st.integers(0, len(taken)))
        by_text = data.draw(st.integers(0, accepted))
        for i in range(len(taken)):
            read += 1
            step = 0 if i >= accepted else "text" if i >= accepted - by_text else i + 1
            ends.append((len(llm.model.detokenize(tokens[:read]).rstrip("�")), step))
        counts = {"drafted_by_text": by_text, "accepted_by_text": by_text}
        pieces.append(Piece("", taken, drafted=accepted, accepted=accepted, **counts))
    expected = [next(step for end, step in ends if end > at) for at in range(len(text))]

    found: list[int | str] = []
    reported = 0
    for i, piece in enumerate(pieces):
        # A parser may hold back the end of the text, and sends no text between two fields.
        there = len(text) if i + 1 == len(pieces) else ends[sum(len(each.token_ids) for each in pieces[: i + 1]) - 1][0]
        end = data.draw(st.integers(reported, there)) if i + 1 < len(pieces) else len(text)
        cut = data.draw(st.integers(reported, end))
        said: list[OutputEvent] = [
            ReasoningDelta(text[reported:cut], reported, cut),
            ContentDelta(text[cut:end], cut, end),
        ]
        chunk = origins.push([piece], said)
        for field, n, step in (chunk or {"origins": []})["origins"]:
            assert field == ("reasoning_content" if len(found) < cut else "content")
            found += [step] * n
        reported = end
    assert found == expected


def test_last_chat_chunk_has_the_usage_or_the_draft_stats(llm: LLM) -> None:
    done = llm.generate("import ")
    end = CompletionDelta(0, [], "length", [])
    for include_usage in (False, True):
        made = chunks(llm, include_usage=include_usage)
        *_, last = events(made.end(end, [done]) + made.usage([[done]]))
        assert last["pymtp"]["drafted"] == done.stats.drafted
        if include_usage:
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == len(done.token_ids)
        else:
            assert last["choices"][0]["finish_reason"] == "length"
