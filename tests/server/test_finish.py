"""Tests of the stop string that the finish info of a completion reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.text import IncrementalDetokenizer
from pymtp.server.event_response import find_stop_string

LETTERS = st.text("aéb😀", max_size=12)


@given(LETTERS, st.lists(st.text("aéb😀", min_size=1, max_size=3), max_size=3))
def test_find_stop_string_finds_the_string_that_ended_the_text(text: str, stops: list[str]) -> None:
    stream = IncrementalDetokenizer(stops)
    data = b""
    given_out = ""
    for byte in text.encode():
        data += bytes([byte])
        given_out += stream.push(bytes([byte]))
        if stream.stopped:
            found = find_stop_string(data, given_out, stops)
            assert found in stops
            assert data.decode().endswith(found)
            return
    given_out += stream.flush()
    assert find_stop_string(data, given_out, stops) is None


@pytest.mark.parametrize("text", ["un caf\u00e9: oui", "un cafe\u0301: oui"])
def test_stop_string_matched_in_nfc_is_reported_as_the_client_wrote_it(text: str) -> None:
    stops = ["oui", "cafe\u0301:"]
    stream = IncrementalDetokenizer(stops)
    out = stream.push(text.encode())
    assert stream.stopped
    assert find_stop_string(text.encode(), out, stops) == stops[1]
