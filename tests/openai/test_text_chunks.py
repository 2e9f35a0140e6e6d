"""Tests of the chunks of a stream of /v1/completions."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest

from pymtp.chat import ContentDelta
from pymtp.engine.deltas import CompletionDelta
from pymtp.engine.request import Piece
from pymtp.model.model import Model
from pymtp.openai.chunks import TextChunks
from pymtp.sampling import TokenLogprobs


@pytest.mark.parametrize("size", [1, 2, 6])
def test_offset_of_a_token_does_not_depend_on_where_chunks_end(demo: Path, size: int) -> None:
    """A character of several tokens belongs to the last of them, also where these tokens come in several chunks."""
    with Model(demo) as model:
        tokens = model.tokenize("x😀y")
        assert len(tokens) == 6  # the character in the middle has four
        chunks, decoder, found = TextChunks(model, "m", {"prompt": "a"}), codecs.getincrementaldecoder("utf-8")(), []
        for some in (tokens[i : i + size] for i in range(0, len(tokens), size)):
            text = decoder.decode(b"".join(model.token_bytes(token) for token in some))
            piece = Piece(text, some, [TokenLogprobs(token, -1.0, ()) for token in some])
            chunk = chunks.chunk(0, CompletionDelta(0, [piece], None, [ContentDelta(text, 0, len(text))]), None)
            found += json.loads(chunk.removeprefix(b"data: "))["choices"][0]["logprobs"]["text_offset"]
    assert found == [0, 1, 1, 1, 1, 2]
