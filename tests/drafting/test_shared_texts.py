"""Tests of the earlier outputs that later requests look in."""

from __future__ import annotations

from random import Random

import pytest

from pymtp.drafting.shared_texts import SharedTexts
from pymtp.drafting.text_index import TextIndex
from pymtp.errors import InvalidRequestError


def output(seed: int, n: int = 1000) -> list[int]:
    """Return an output of n tokens that equals no other one's."""
    luck = Random(seed)
    return [luck.randrange(10**6) for _ in range(n)]


def known(texts: SharedTexts, owner: str, tokens: list[int]) -> bool:
    """Return whether the last tokens of an output are found among the owner's texts."""
    index = texts.of(owner)
    return [guess.token for guess in TextIndex(tokens[:-1]).guess(n=1, other=index)] == tokens[-1:]


def test_outputs_are_found_by_their_owner_only() -> None:
    texts = SharedTexts(2**20)
    texts.add("a", output(1))
    texts.add("b", output(2))
    texts.add("a", output(3))
    assert [known(texts, "a", output(seed)) for seed in (1, 2, 3)] == [True, False, True]
    assert [known(texts, "b", output(seed)) for seed in (1, 2, 3)] == [False, True, False]
    assert texts.of("c") is None


def test_no_guess_leads_from_one_output_to_the_next() -> None:
    texts = SharedTexts(2**20)
    texts.add("a", output(1))
    texts.add("a", output(2))
    assert TextIndex(output(1)).guess(n=1, other=texts.of("a")) == []


def test_owner_used_least_recently_goes_first() -> None:
    one = TextIndex(output(0))
    texts = SharedTexts(int(3.5 * one.nbytes))
    for owner in "ab":
        texts.add(owner, output(ord(owner)))
    assert texts.of("a") is not None
    texts.add("c", output(3))
    texts.add("d", output(4))
    assert [owner for owner in "abcd" if texts.of(owner)] == ["a", "c", "d"]


def test_owner_that_is_too_large_keeps_its_newer_half() -> None:
    texts = SharedTexts(100_000)
    for seed in range(20):
        texts.add("a", output(seed))
        assert 0 < texts.nbytes <= 100_000
        assert known(texts, "a", output(seed))
    index = texts.of("a")
    assert index
    assert len(index) >= 1500
    assert not known(texts, "a", output(0))


def test_bytes_are_those_of_all_indexes() -> None:
    texts = SharedTexts(2**20)
    assert texts.nbytes == 0
    for seed in range(40):
        texts.add(f"owner {seed % 7}", output(seed))
        assert texts.nbytes <= 2**20
        assert texts.nbytes == sum(index.nbytes for i in range(7) if (index := texts.of(f"owner {i}")))


def test_output_is_added_without_a_look_at_other_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, looked_at, nbytes = SharedTexts(2**20), set[int](), TextIndex.nbytes
    for i in range(30):  # as many owners as requests, if each request has a salt of its own
        texts.add(f"owner {i}", output(i, 10))
    monkeypatch.setattr(TextIndex, "nbytes", property(lambda index: looked_at.add(id(index)) or nbytes.__get__(index)))
    texts.add("owner 3", output(30, 10))
    assert looked_at == {id(texts.of("owner 3"))}


@pytest.mark.parametrize("limit", [0, 1, 100])
def test_limit_below_one_index_keeps_nothing(limit: int) -> None:
    texts = SharedTexts(limit)
    texts.add("a", output(1))
    assert texts.of("a") is None
    assert texts.nbytes == 0


def test_wrong_output_is_refused_and_changes_nothing() -> None:
    texts = SharedTexts(2**20)
    texts.add("a", output(1))
    before = texts.nbytes
    for owner in "ab":
        with pytest.raises(InvalidRequestError):
            texts.add(owner, [2**31])
    assert texts.nbytes == before
    assert texts.of("b") is None
    texts.add("a", [])
    texts.add("b", [])
    assert texts.of("b") is None
