"""Tests of the index that finds where the end of a text occurred before."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers.naive_guesses import LONGEST, SEPARATOR, common_end, naive_guesses
from hypothesis import given
from hypothesis import strategies as st

from pymtp.drafting.text_index import MAX_GUESSES, TextIndex
from pymtp.errors import InvalidRequestError
from pymtp.native import ffi, lib

CANDIDATES = 16
SOURCE = list(Path(__file__).read_bytes())  # one token a byte


def texts(alphabet: int, max_size: int = 120) -> Any:
    """Return a strategy for texts in which much repeats; separators stand between some tokens."""
    return st.lists(st.integers(-1 if alphabet > 2 else 0, alphabet - 1), max_size=max_size)


@given(st.sampled_from([1, 2, 3, 5]).flatmap(lambda k: st.tuples(texts(k), texts(k), texts(k, 20))), st.integers(0, 40))
def test_guesses_equal_those_of_a_search_that_looks_everywhere(all_texts: tuple[list[int], ...], n: int) -> None:
    text, other, drafts = all_texts
    drafts = [token for token in drafts if token >= 0]
    index, earlier = TextIndex(), TextIndex(other)
    for token in text:
        index.add([token])
    assert index.guess(drafts, n=n, other=earlier) == list(naive_guesses(text, other, drafts, n))
    assert index.guess(n=n) == list(naive_guesses(text, [], [], n))


def test_guesses_on_edited_source_equal_those_of_a_search_that_looks_everywhere() -> None:
    luck = Random(0)
    changed = [token if luck.random() < 0.97 else luck.randrange(256) for token in SOURCE[:2000]]
    index, earlier = TextIndex(SOURCE[:2000]), TextIndex(changed)
    for i in range(0, 2000, 50):
        index.add(changed[i : i + 50])
        text = SOURCE[:2000] + changed[: i + 50]
        drafts = changed[i + 50 : i + 50 + luck.randrange(12)]
        assert index.guess(drafts, n=31, other=earlier) == list(naive_guesses(text, changed, drafts, 31))


def test_first_guess_has_the_length_of_the_longest_match() -> None:
    n_checked = 0
    for seed in range(300):
        luck = Random(seed)
        alphabet = luck.choice([3, 6, 12])
        text = [luck.randrange(alphabet) for _ in range(luck.randrange(20, 200))]
        begin = luck.randrange(len(text))
        text += text[begin : begin + luck.randrange(100)]
        if max(Counter(tuple(text[i : i + 3]) for i in range(len(text))).values()) < CANDIDATES:
            longest = max(common_end(text[:end], text) for end in range(len(text)))
            guesses = TextIndex(text).guess(n=1)
            assert [guess.length for guess in guesses] == ([longest] if longest >= 3 else [])
            n_checked += bool(guesses)
    assert n_checked > 100


def test_each_guess_follows_an_earlier_occurrence() -> None:
    for seed in range(50):
        luck = Random(seed)
        text = [luck.randrange(4) for _ in range(200)]
        followed = list(text)
        for guess in TextIndex(text).guess(n=20):
            followed.append(guess.token)
            same = followed[len(text) - 3 :]
            assert any(followed[i : i + len(same)] == same for i in range(len(text) - 3))


def test_length_grows_by_one_while_the_longest_match_agrees() -> None:
    guesses = TextIndex(SOURCE[:3000] + SOURCE[1000:1200]).guess(n=31)
    assert [guess.token for guess in guesses] == SOURCE[1200:1231]
    assert guesses[0].length == LONGEST
    assert all(after.length == before.length + 1 for before, after in pairwise(guesses))


def test_most_frequent_continuation_wins_then_the_longest_match_then_the_most_recent() -> None:
    index = TextIndex([1, 2, 3, 7, SEPARATOR, 1, 2, 3, 8, SEPARATOR, 1, 2, 3, 7, SEPARATOR, 1, 2, 3])
    assert index.guess(n=1) == [(7, 3, 2, 3)]
    words = [11, 12, 13, 14, 15, 16, 17]
    index = TextIndex([10, *words, 7, SEPARATOR, 5, *words, 8, SEPARATOR, 10, *words])
    assert index.guess(n=1) == [(7, 8, 1, 2)]
    index = TextIndex([1, 2, 3, 7, SEPARATOR, 1, 2, 3, 8, SEPARATOR, 1, 2, 3])
    assert index.guess(n=1) == [(8, 3, 1, 2)]


def test_much_shorter_matches_do_not_vote() -> None:
    words = [1, 2, 3, 4, 5]
    index = TextIndex([*words, 8, *([SEPARATOR, 2, 3, 4, 5, 9] * 3), SEPARATOR, *words])
    assert index.guess(n=1) == [(8, 5, 1, 1)]
    words = list(range(10, 24))
    index = TextIndex([*words, 8, *([SEPARATOR, *words[1:], 9] * 3), SEPARATOR, *words])
    assert index.guess(n=1) == [(9, 14, 3, 4)]


def test_no_match_and_no_continuation_spans_a_separator() -> None:
    assert TextIndex([1, 2, 3, 4, 1, 2, SEPARATOR, 3]).guess(n=4) == []
    assert TextIndex([1, 2, SEPARATOR, 3, 4, 1, 2, 3]).guess(n=4) == []
    assert TextIndex([1, 2, 3, SEPARATOR, 4, 1, 2, 3]).guess(n=4) == []
    assert [g.token for g in TextIndex([9, 1, 2, 3, 4, SEPARATOR, 8, 1, 2, 3]).guess(n=4)] == [4]
    assert TextIndex([9, 1, 2, 3, 4, SEPARATOR, 9, 1, 2, 3]).guess(n=1)[0].length == 4


def test_end_of_an_earlier_text_does_not_hide_a_shorter_match_that_goes_on() -> None:
    words = [1, 2, 3, 4, 5, 6, 7]
    index = TextIndex([*words, SEPARATOR, 9, 5, 6, 7, 8, SEPARATOR, *words])
    assert index.guess(n=1) == [(8, 3, 1, 1)]


def test_n_grams_with_one_hash_are_told_apart() -> None:
    factor, luck = np.uint64(0x9E3779B97F4A7C15), np.random.default_rng(0)  # as in text_index.cpp
    grams = luck.integers(10**6, size=(3_500_000, 3), dtype=np.uint64)
    hashes = np.zeros(len(grams), np.uint64)
    for column in grams.T:
        hashes = (hashes + column) * factor
    same = grams[hashes < 2**64 // 8192].astype(int).tolist()  # the first slots of a table of up to 8,192 slots
    known, unknown = same[:350], same[350:]
    assert unknown
    index = TextIndex([token for i, gram in enumerate(known) for token in [*gram, i, SEPARATOR]])
    found = [index.guess(gram, n=1) for gram in known]
    assert all(guesses in ([], [(i, 3, 1, 1)]) for i, guesses in enumerate(found))
    # There are more n-grams than slots that are tried. So some are forgotten, which limits the time
    assert 100 < sum(map(len, found)) < 350
    assert [index.guess(gram, n=1) for gram in unknown] == [[]] * len(unknown)


@pytest.mark.parametrize("period", [1, 2, 3, 5, 70])
def test_periodic_text_continues_into_itself(period: int) -> None:
    text = (list(range(period)) * 250)[:250]
    index = TextIndex(text)
    assert [guess.token for guess in index.guess(n=200)] == [(250 + i) % period for i in range(200)]
    assert [guess.token for guess in index.guess([250 % period], n=9)] == [(251 + i) % period for i in range(9)]


def test_guesses_continue_the_drafts() -> None:
    index = TextIndex([1, 2, 3, 4, 5, 6, 7, 8, 1, 2])
    assert [guess.token for guess in index.guess([3, 4], n=3)] == [5, 6, 7]
    assert index.guess([3, 9], n=3) == []
    assert index.guess([3, 4], n=1)[0].length == 4


def test_longer_match_in_other_texts_wins() -> None:
    index = TextIndex([1, 2, 3, 9, 7, 6, 5, 4, 1, 2, 3])
    other = TextIndex([0, 7, 6, 5, 4, 1, 2, 3, 8, SEPARATOR])
    assert index.guess(n=5)[0].token == 9
    assert index.guess(n=5, other=other) == [(8, 7, 1, 1)]
    assert index.guess(n=5, other=TextIndex()) == index.guess(n=5)


def test_keep_last_forgets_all_before() -> None:
    index = TextIndex(SOURCE[:2000])
    before = index.nbytes
    index.keep_last(500)
    assert len(index) == 500
    assert index.nbytes < before / 3
    for i in range(0, 500, 20):
        drafts = SOURCE[i : i + 10]
        assert index.guess(drafts, n=5) == TextIndex(SOURCE[1500:2000]).guess(drafts, n=5)
    index.keep_last(1000)
    assert len(index) == 500
    index.keep_last(0)
    index.add([1, 2, 3, 4, 1, 2, 3])
    assert [guess.token for guess in index.guess(n=1)] == [4]


@pytest.mark.parametrize("alphabet", [1, 2, 300, 2**31 - 1])
def test_index_takes_at_most_36_bytes_a_token(alphabet: int) -> None:
    luck = Random(0)
    index, most = TextIndex(), 0.0
    for _ in range(100):
        index.add([luck.randrange(alphabet) for _ in range(2000)])
        most = max(most, index.nbytes / len(index))
    assert len(index) == 200_000
    assert 12 < index.nbytes / len(index) <= most <= 36


@pytest.mark.parametrize("wrong", [[2**31], [-(2**31) - 1], [2**100], [1.5], ["a"], "ab", [None], None, 7, [[1]]])
def test_wrong_tokens_are_refused_and_nothing_is_added(wrong: Any) -> None:
    index = TextIndex([1, 2, 3])
    with pytest.raises((InvalidRequestError, TypeError)):
        index.add(wrong)
    with pytest.raises((InvalidRequestError, TypeError)):
        index.guess(wrong, n=1)
    with pytest.raises((InvalidRequestError, TypeError)):
        TextIndex(wrong)
    assert len(index) == 3


def test_an_image_is_neither_guessed_nor_matched() -> None:
    for image in ([-2] * 9, [-1] * 9, [-(2**31)]):
        index = TextIndex([1, 2, 3, *image, 4, 5, 6, 1, 2, 3])
        assert not index.guess(n=4)
        index.add([*image, 4, 5, 6])
        assert [guess.token for guess in index.guess(n=4)] == [1, 2, 3]
    with pytest.raises(InvalidRequestError):
        index.guess([1, -2], n=1)


def test_wrong_counts_and_texts_are_refused() -> None:
    index = TextIndex([1, 2, 3, 1, 2, 3])
    for n in (-1, MAX_GUESSES + 1, 2**70, 1.5, True, None):
        wrong: Any = n
        with pytest.raises(InvalidRequestError, match="n="):
            index.guess(n=wrong)
    for n in (-1, 2**70, 1.5, None):
        wrong = n
        with pytest.raises(InvalidRequestError, match="n="):
            index.keep_last(wrong)
    for other in (SOURCE, 7, "text"):
        wrong = other
        with pytest.raises(TypeError, match="TextIndex"):
            index.guess(n=1, other=wrong)
    with pytest.raises(InvalidRequestError, match="numbers from 0"):
        index.guess([SEPARATOR], n=1)
    assert len(index) == 6


def test_c_api_of_texts_refuses_negative_counts() -> None:
    native, some = TextIndex([1, 2, 3]).native, ffi.new("int32_t[]", [1, 2, 3])
    assert lib.pymtp_text_add(native, some, -1) == lib.PYMTP_INVALID
    assert lib.pymtp_text_keep_last(native, -1) == lib.PYMTP_INVALID
    for n_drafts, n in ((-1, 1), (1, -1)):
        found = lib.pymtp_text_guess(native, ffi.NULL, some, n_drafts, n, *[some] * 4)
        assert found == lib.PYMTP_INVALID
    assert lib.pymtp_text_size(native) == 3


def test_text_index_is_not_copied() -> None:
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="TextIndex holds native state"):
            duplicate(TextIndex())
