"""Claims about the chunks of a chat's stream, and what they tell of drafts."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pymtp import LLM
from pymtp.chat import CallArguments, CallBegun, Event, Said, Thought
from pymtp.engine.request import Piece
from pymtp.server.openai.chat_chunks import ChatChunks
from pymtp.server.openai.chat_types import ChatChunk
from pymtp.server.openai.origins import Origins
from pymtp.server.service import Update


def chunks(llm: LLM, n: int = 1, **keywords: bool) -> ChatChunks:
    return ChatChunks(llm.model, 'a "name"', n, **({"include_usage": False, "origins": False} | keywords))


def events(data: bytes) -> list[dict[str, Any]]:
    """The chunks, each of which is what the schema says."""
    found = []
    for event in data.split(b"\n\n")[:-1]:
        assert event.startswith(b"data: ")
        ChatChunk.model_validate_json(event[6:])
        found.append(json.loads(event[6:]))
    return found


def test_what_came_at_once_is_one_chunk_after_the_first_which_has_the_role(llm: LLM) -> None:
    made = chunks(llm)
    update = Update(0, [Thought("a", 0, 1), Said('b"\n', 2, 5), Said("ü", 5, 6)], [], None)
    first, second = events(made.chunk(update))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second["choices"][0]["delta"] == {"reasoning_content": "a", "reasoning": "a", "content": 'b"\nü'}
    assert (second["id"], second["model"]) == (first["id"], 'a "name"')
    (third,) = events(made.chunk(update))
    assert "role" not in third["choices"][0]["delta"]


def test_a_call_has_its_name_and_id_once(llm: LLM) -> None:
    made = chunks(llm)
    begun: list[Event] = [CallBegun(0, "f"), CallArguments(0, '{"a":'), CallArguments(0, " 1}"), CallBegun(1, "g")]
    _, one = events(made.chunk(Update(0, begun, [], None)))
    first, second = one["choices"][0]["delta"]["tool_calls"]
    assert (first["index"], first["function"]) == (0, {"name": "f", "arguments": '{"a": 1}'})
    assert (second["index"], second["function"]) == (1, {"name": "g", "arguments": ""})
    assert first["id"] != second["id"]
    (two,) = events(made.chunk(Update(0, [CallArguments(1, "{}")], [], None)))
    assert two["choices"][0]["delta"]["tool_calls"] == [{"index": 1, "function": {"arguments": "{}"}}]


def test_an_update_that_brings_no_text_is_no_chunk(llm: LLM) -> None:
    made = chunks(llm, 2)
    made.chunk(Update(0, [], [], None))
    assert made.chunk(Update(0, [], [Piece("", [5])], None)) == b""
    assert len(events(made.chunk(Update(1, [], [Piece("", [5])], None)))) == 1  # each text has a role


def test_a_character_is_the_tokens_that_completes_it(llm: LLM) -> None:
    tokens = llm.model.tokenize("aö")  # in bytes: the last two are one character
    assert [llm.model.token_bytes(token) for token in tokens] == [b"a", b"\xc3", b"\xb6"]
    origins = Origins(llm.model)
    first = origins.of([Piece("a", tokens[:2], drafted=2, accepted=2)], [Said("a", 0, 1)])
    second = origins.of([Piece("ö", tokens[2:], drafted=3, accepted=0)], [Said("ö", 1, 2)])
    assert first == {"origins": [["content", 1, 1]], "rounds": [[2, 2]]}
    assert second == {"origins": [["content", 1, 0]], "rounds": [[3, 0]]}
    assert origins.of([], []) is None


@given(st.data())
def test_origins_of_any_pieces_and_events_are_those_of_the_tokens(llm: LLM, data: st.DataObject) -> None:
    text = data.draw(st.text("abc öß€😀\n", min_size=1, max_size=30))
    tokens = llm.model.tokenize(text)
    ends: list[tuple[int, int]] = []  # of each token: the length of the text by then, and its step
    origins, pieces, read = Origins(llm.model), [], 0
    while read < len(tokens):
        taken = tokens[read : read + data.draw(st.integers(1, 4))]
        accepted = data.draw(st.integers(0, len(taken)))
        for i in range(len(taken)):
            read += 1
            ends.append((len(llm.model.detokenize(tokens[:read]).rstrip("�")), i + 1 if i < accepted else 0))
        pieces.append(Piece("", taken, drafted=accepted, accepted=accepted))
    expected = [next(step for end, step in ends if end > at) for at in range(len(text))]

    found: list[int] = []
    told = 0
    for i, piece in enumerate(pieces):
        # what a reader of answers holds back comes later, and what stands between two fields not at all
        there = len(text) if i + 1 == len(pieces) else ends[sum(len(each.token_ids) for each in pieces[: i + 1]) - 1][0]
        end = data.draw(st.integers(told, there)) if i + 1 < len(pieces) else len(text)
        cut = data.draw(st.integers(told, end))
        said: list[Event] = [Thought(text[told:cut], told, cut), Said(text[cut:end], cut, end)]
        chunk = origins.of([piece], said)
        for field, n, step in (chunk or {"origins": []})["origins"]:
            assert field == ("reasoning_content" if len(found) < cut else "content")
            found += [step] * n
        told = end
    assert found == expected


def test_the_last_chunk_has_usage_or_the_drafts(llm: LLM) -> None:
    done = llm.generate("import ")
    end = Update(0, [], [], "length")
    for include_usage in (False, True):
        made = chunks(llm, include_usage=include_usage)
        *_, last = events(made.end(end, [done]) + made.usage([done]))
        assert last["pymtp"]["drafted"] == done.stats.drafted
        if include_usage:
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == len(done.token_ids)
        else:
            assert last["choices"][0]["finish_reason"] == "length"
