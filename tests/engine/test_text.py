"""Claims about text in pieces: nothing broken, nothing taken back, no part of a stop string given out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.text import TextStream
from pymtp.validation import whole_texts


def chop(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


sizes = st.lists(st.integers(0, 5), max_size=40)


@given(st.text(), sizes)
def test_pieces_join_to_the_text_however_it_is_cut(text: str, sizes: list[int]) -> None:
    stream = TextStream()
    out = "".join(stream.push(piece) for piece in chop(text.encode(), sizes)) + stream.flush()
    assert out == text


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), sizes)
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str], sizes: list[int]) -> None:
    stream = TextStream(stops)
    out = ""
    for piece in chop(text.encode(), sizes):
        out += stream.push(piece)
        # what is out can no longer turn out to be part of a stop string
        assert text.startswith(out)
        assert not any(stop in out for stop in stops)
        if stream.stopped:
            break
    out += stream.flush()
    assert not any(stop in out for stop in stops)
    if not stream.stopped:
        assert out == text


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=4))
def test_one_character_at_a_time_a_stop_string_is_found_where_it_first_completes(text: str, stop: str) -> None:
    stream = TextStream([stop])
    out = "".join(stream.push(c.encode()) for c in text)
    assert stream.stopped == (stop in text)
    if stream.stopped:
        assert out == text[: text.index(stop)]


def test_a_start_of_a_stop_string_is_held_back_until_it_is_none() -> None:
    stream = TextStream(["###"])
    assert stream.push(b"a#") == "a"
    assert stream.push(b"#") == ""
    assert stream.push(b"b") == "##b"


def test_bytes_that_never_become_a_character_are_replaced_at_the_end() -> None:
    stream = TextStream()
    assert stream.push("é".encode()[:1]) == ""
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("stop", ["caf\u00e9:", "cafe\u0301:"])
def test_a_stop_string_that_is_not_nfc_is_found_in_nfc_and_as_written(stop: str) -> None:
    nfc, nfd = "un caf\u00e9: oui", "un cafe\u0301: oui"
    found = {text: TextStream([stop]) for text in (nfc, nfd)}
    for text, stream in found.items():
        out = "".join(stream.push(bytes([byte])) for byte in text.encode()) + stream.flush()
        assert out == ("un " if stream.stopped else text)
    assert found[nfc].stopped
    assert found[nfd].stopped == (stop in nfd)


def test_texts_without_halves_of_characters_stay_the_same_value() -> None:
    whole = {"a": ["b", {"c": "\U0001f600"}], "n": float("nan")}
    assert whole_texts(whole) is whole
    assert whole_texts({"\ud83d": ["\ude00", 1, [True, "\ud83d\ude00"]]}) == {
        "\ufffd": ["\ufffd", 1, [True, "\U0001f600"]]
    }
    assert whole_texts([{1, 2}]) == [{1, 2}]  # no value of JSON
