"""Claims about how an answer is seen to have ended, and what of it was thinking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymtp.server.ended import stop_found, tokens_within
from pymtp.text import TextStream

LETTERS = st.text("aéb😀", max_size=12)


@given(LETTERS, st.lists(st.text("aéb😀", min_size=1, max_size=3), max_size=3))
def test_the_stop_string_that_is_found_is_the_one_that_stopped(text: str, stops: list[str]) -> None:
    stream = TextStream(stops)
    data = b""
    given_out = ""
    for byte in text.encode():
        data += bytes([byte])
        given_out += stream.push(bytes([byte]))
        if stream.stopped:
            found = stop_found(data, given_out, stops)
            assert found in stops
            assert data.decode().endswith(found)
            return
    given_out += stream.flush()
    assert stop_found(data, given_out, stops) is None


@given(LETTERS, st.data())
def test_tokens_are_counted_where_they_begin(text: str, data: st.DataObject) -> None:
    """Tokens of one byte each: a character counts as often as it has bytes, but where it is cut off."""
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), min_size=2, max_size=4)) if len(text) > 3 else [])
    ranges = list(zip(places[::2], places[1::2], strict=False))
    tokens = [bytes([byte]) for byte in text.encode()]
    expected = sum(len(text[start:end].encode()) for start, end in ranges)
    assert tokens_within(tokens, ranges) == expected


@pytest.mark.parametrize(("places", "n"), [([], 0), ([(0, 2)], 1), ([(0, 3)], 2), ([(2, 4)], 1), ([(0, 99)], 3)])
def test_a_token_of_several_characters_counts_once(places: list[tuple[int, int]], n: int) -> None:
    assert tokens_within([b"ab", b"cd", b"e"], places) == n


@pytest.mark.parametrize("text", ["un caf\u00e9: oui", "un cafe\u0301: oui"])
def test_a_stop_string_found_in_nfc_is_told_as_the_client_wrote_it(text: str) -> None:
    stops = ["oui", "cafe\u0301:"]
    stream = TextStream(stops)
    out = stream.push(text.encode())
    assert stream.stopped
    assert stop_found(text.encode(), out, stops) == stops[1]
