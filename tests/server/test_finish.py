"""Claims about how an answer is seen to have ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.text import TextStream
from pymtp.server.finish import stop_found

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


@pytest.mark.parametrize("text", ["un caf\u00e9: oui", "un cafe\u0301: oui"])
def test_a_stop_string_found_in_nfc_is_told_as_the_client_wrote_it(text: str) -> None:
    stops = ["oui", "cafe\u0301:"]
    stream = TextStream(stops)
    out = stream.push(text.encode())
    assert stream.stopped
    assert stop_found(text.encode(), out, stops) == stops[1]
