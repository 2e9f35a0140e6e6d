"""Tests of the incremental detokenizer: it returns whole characters, and no part of a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.text import IncrementalDetokenizer
from pymtp.validation import replace_all_surrogates


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(data[start : start + size])
        start += size
    return [*pieces, data[start:]]


sizes = st.lists(st.integers(0, 5), max_size=40)


@given(st.text(), sizes)
def test_detokenizer_pieces_join_to_the_text_for_any_division_of_its_bytes(text: str, sizes: list[int]) -> None:
    stream = IncrementalDetokenizer()
    out = "".join(stream.push(piece) for piece in split(text.encode(), sizes)) + stream.flush()
    assert out == text


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), sizes)
def test_returned_text_ends_before_the_first_stop_string(text: str, stops: list[str], sizes: list[int]) -> None:
    stream = IncrementalDetokenizer(stops)
    out = ""
    for piece in split(text.encode(), sizes):
        out += stream.push(piece)
        # the returned text has no part of a stop string
        assert text.startswith(out)
        assert not any(stop in out for stop in stops)
        if stream.stopped:
            break
    out += stream.flush()
    assert not any(stop in out for stop in stops)
    if not stream.stopped:
        assert out == text


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=4))
def test_stop_string_is_found_as_soon_as_it_is_complete(text: str, stop: str) -> None:
    stream = IncrementalDetokenizer([stop])
    out = "".join(stream.push(c.encode()) for c in text)
    assert stream.stopped == (stop in text)
    if stream.stopped:
        assert out == text[: text.index(stop)]


def test_possible_beginning_of_a_stop_string_is_held_back() -> None:
    stream = IncrementalDetokenizer(["###"])
    assert stream.push(b"a#") == "a"
    assert stream.push(b"#") == ""
    assert stream.push(b"b") == "##b"


def test_incomplete_character_at_the_end_of_the_text_is_replaced() -> None:
    stream = IncrementalDetokenizer()
    assert stream.push("é".encode()[:1]) == ""
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("stop", ["caf\u00e9:", "cafe\u0301:"])
def test_stop_string_in_nfd_is_found_in_both_normal_forms(stop: str) -> None:
    nfc, nfd = "un caf\u00e9: oui", "un cafe\u0301: oui"
    streams = {text: IncrementalDetokenizer([stop]) for text in (nfc, nfd)}
    for text, stream in streams.items():
        out = "".join(stream.push(bytes([byte])) for byte in text.encode()) + stream.flush()
        assert out == ("un " if stream.stopped else text)
    assert streams[nfc].stopped
    assert streams[nfd].stopped == (stop in nfd)


def test_lone_surrogates_are_replaced_and_other_values_stay() -> None:
    whole = {"a": ["b", {"c": "\U0001f600"}], "n": float("nan")}
    assert replace_all_surrogates(whole) is whole
    assert replace_all_surrogates({"\ud83d": ["\ude00", 1, [True, "\ud83d\ude00"]]}) == {
        "\ufffd": ["\ufffd", 1, [True, "\U0001f600"]]
    }
    assert replace_all_surrogates([{1, 2}]) == [{1, 2}]  # a set is not a JSON value, and stays
