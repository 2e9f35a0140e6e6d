"""Tests of TokenSource: it reads text only as far as needed, and never returns the same slice twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from pymtp import InvalidRequestError
from pymtp.bench.corpus import TokenSource, stdlib_texts


def tokenize(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def test_token_source_yields_successive_slices_across_texts() -> None:
    source = TokenSource(tokenize, lambda: ["1 2 3", "4 5", "6"])
    assert [source.take(2), source.take(3), source.take(1)] == [[1, 2], [3, 4, 5], [6]]


def test_token_source_reads_no_more_text_than_needed() -> None:
    def texts() -> Iterator[str]:
        yield "1 2 3"
        pytest.fail("the second text was not needed")

    assert TokenSource(tokenize, texts).take(3) == [1, 2, 3]


def test_token_source_cuts_its_second_pass_at_other_tokens() -> None:
    whole = list(range(100))
    source = TokenSource(tokenize, lambda: [" ".join(map(str, whole[:30])), " ".join(map(str, whole[30:]))])
    turns = [source.take(100)] + [source.take(50) for _ in range(20)]
    assert turns[0] == whole
    assert len({tuple(turn) for turn in turns}) == len(turns)
    assert all(b == a + 1 or a == 99 for turn in turns for a, b in pairwise(turn))


def test_token_source_of_empty_text_raises_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="no text"):
        TokenSource(tokenize, lambda: ["", ""]).take(1)


def test_standard_library_has_enough_tokens_for_the_default_prefill_bench() -> None:
    # the default sizes need 425k tokens in each of three rounds, and a token is at least 4 characters of code
    assert sum(map(len, stdlib_texts())) > 4 * 3 * 425 * 1024
