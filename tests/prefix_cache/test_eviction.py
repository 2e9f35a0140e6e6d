"""Claims about what goes first where host memory is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pymtp.prefix_cache.checkpoints import Why
from pymtp.prefix_cache.eviction import FIRST, Budget
from pymtp.prefix_cache.tree import Block, Node, Part, PrefixTree, as_tokens


@dataclass
class Data:
    nbytes: int


class Cache:
    """Checkpoints of 100 bytes, and K and V of one byte a token."""

    def __init__(self, limit: int = 10**6) -> None:
        self.tree = PrefixTree()
        self.budget = Budget(self.tree, limit, 1, lambda start, end: float(end - start))

    def put(self, text: int, n: int, why: Why = Why.PARTING, nbytes: int = 100) -> Node:
        """A checkpoint after n tokens of a text: texts share nothing."""
        node = self.budget.put(as_tokens([text] * n), Data(nbytes), why, logits=False)
        assert node is not None
        return node

    def cover(self, node: Node, start: int = 0) -> Node:
        self.tree.cover(node, [Part(Block(start, Data(node.end - start)), start, node.end)])
        return node

    def order(self, keep: Sequence[Node] = ()) -> list[Node]:
        """The checkpoints as they go."""
        gone: list[Node] = []
        while left := [node for node in self.tree.checkpoints if node not in keep]:
            self.budget.limit = self.tree.nbytes
            assert self.budget.room(1, 1e9, keep)
            gone += [node for node in left if node not in self.tree.checkpoints]
        return gone


def test_what_saves_least_reading_per_byte_goes_first() -> None:
    cache = Cache()
    dear, cheap, large = cache.put(1, 500), cache.put(2, 100), cache.put(3, 500, nbytes=600)
    assert cache.order() == [large, cheap, dear]


def test_the_reading_that_a_checkpoint_saves_begins_at_the_one_before() -> None:
    cache = Cache()
    first, second, third = (cache.put(1, n, nbytes=1000) for n in (1000, 1100, 1500))
    assert cache.order() == [second, third, first]


def test_without_the_one_before_a_checkpoint_saves_more() -> None:
    cache = Cache()
    first, second = cache.put(1, 300), cache.put(1, 400)
    alone = cache.budget.priority(second)
    cache.tree.drop(first)
    assert cache.budget.priority(second) > alone


def test_what_was_not_used_for_long_falls_behind_however_dear_it_is() -> None:
    cache = Cache(limit=1000)
    dear = cache.put(1, 900)
    for text in range(2, 400):
        priority = cache.budget.clock + cache.budget.worth(0, 90, 100, cells=90)
        assert cache.budget.room(100, priority, ())
        cache.put(text, 90)
    assert dear not in cache.tree.checkpoints


def test_what_was_used_often_falls_behind_where_all_else_is_turned_away() -> None:
    cache = Cache(limit=150)
    node = cache.put(1, 100)
    for _ in range(8):
        cache.budget.touch(node)
    refused = 0
    while not cache.budget.room(100, cache.budget.clock + cache.budget.worth(0, 100, 100, cells=100), ()):
        refused += 1
        assert refused < 10
    assert refused
    assert node not in cache.tree.checkpoints


def test_what_is_used_stays() -> None:
    cache = Cache(limit=1000)
    used, other = cache.put(1, 100), cache.put(2, 100)
    for text in range(3, 400):
        priority = cache.budget.clock + cache.budget.worth(0, 90, 100, cells=90)
        assert cache.budget.room(100, priority, ())
        cache.put(text, 90)
        cache.budget.touch(used)
    assert used in cache.tree.checkpoints
    assert other not in cache.tree.checkpoints


def test_what_was_seen_to_be_wanted_goes_after_what_may_be() -> None:
    cache = Cache()
    step, end = cache.put(1, 200, Why.STEP), cache.put(2, 190, Why.END)
    parting, mark = cache.put(3, 110, Why.PARTING), cache.put(4, 100, Why.MARK)
    often = cache.put(5, 100, Why.STEP)
    for _ in range(3):
        cache.budget.touch(often)
    assert cache.order() == [end, step, mark, parting, often]


def test_where_a_chat_went_on_goes_before_where_it_is() -> None:
    cache = Cache()
    past = cache.put(1, 1000, Why.MARK)
    cache.budget.touch(past)
    here = cache.put(1, 1200, Why.MARK)
    assert cache.order() == [past, here]


def test_a_checkpoint_goes_without_the_k_and_v_that_later_ones_need() -> None:
    cache = Cache()
    first = cache.put(1, 200, Why.STEP)
    last = cache.cover(cache.put(1, 1000))
    assert cache.order(keep=[last]) == [first]
    assert (cache.tree.n_tokens, cache.budget.evicted_tokens) == (1000, 0)


def test_k_and_v_go_from_the_end_with_the_last_checkpoint_that_needs_them() -> None:
    cache = Cache()
    first = cache.put(1, 200)
    last = cache.cover(cache.put(1, 1000))
    assert cache.order(keep=[first]) == [last]
    assert (cache.tree.n_tokens, cache.tree.nbytes) == (200, 100 + 1000)  # a block goes as a whole
    assert cache.budget.evicted_tokens == 800


def test_the_k_and_v_of_the_last_checkpoint_count_for_its_bytes() -> None:
    cache = Cache()
    short, long = cache.put(1, 100), cache.put(2, 1000)
    assert cache.budget.priority(short) == 100 / (100 + 100)
    assert cache.budget.priority(long) == 1000 / (100 + 1000)
    between = cache.put(2, 400)
    assert cache.budget.priority(between) == 400 / 100
    assert cache.budget.priority(long) == 600 / (100 + 600)


def test_what_must_stay_stays_and_then_there_is_no_room() -> None:
    cache = Cache(limit=250)
    nodes = [cache.put(1, 100), cache.put(2, 100)]
    assert not cache.budget.room(100, 1e9, nodes)
    assert cache.budget.room(100, 1e9, nodes[:1])
    assert list(cache.tree.checkpoints) == nodes[:1]


def test_nothing_goes_for_what_is_worth_less_or_never_fits() -> None:
    cache = Cache(limit=250)
    nodes = [cache.put(1, 100), cache.put(2, 100)]
    assert not cache.budget.room(100, 0.4, ())
    assert not cache.budget.room(251, 1e9, ())
    assert list(cache.tree.checkpoints) == nodes
    assert cache.budget.clock < 0.5


@pytest.mark.parametrize("priority", [1e9, 0.1])
def test_what_goes_of_many_is_found_without_a_look_at_all_for_each(
    priority: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, looks = Cache(limit=100 * 2000), 0
    for text in range(2000):
        cache.put(text, 100)
    look = Budget.priority

    def counted(self: Budget, node: Node) -> float:
        nonlocal looks
        looks += 1
        return look(self, node)

    monkeypatch.setattr(Budget, "priority", counted)
    for text in range(2000, 2100):
        if cache.budget.room(100, priority, ()):
            cache.put(text, 100)
    assert looks < 100 * 200
    assert len(cache.tree.checkpoints) >= 2000 - 2000 // 64


def test_what_is_less_wanted_since_another_was_turned_away_goes_for_the_next() -> None:
    rare = FIRST[Why.MARK]
    cache = Cache(limit=200)  # where a chat was goes, since it is somewhere else
    past, here = cache.put(1, 100, Why.MARK), cache.put(1, 300, Why.MARK)
    assert not cache.budget.room(100, 0.5 * rare, ())
    cache.budget.touch(past)
    assert cache.budget.room(100, 0.6 * rare, ())
    assert list(cache.tree.checkpoints) == [here]

    cache = Cache(limit=200)  # the K and V that two needed are one's now
    one, other = (cache.budget.put(as_tokens([1] * 200 + [i] * 100), Data(100), Why.MARK, logits=False) for i in (2, 3))
    assert one is not None
    assert other is not None
    assert not cache.budget.room(200, 1.0 * rare, ())
    cache.tree.drop(one)
    assert cache.budget.room(200, 1.0 * rare, ())
    assert not cache.tree.checkpoints

    cache = Cache(limit=200)
    cache.put(1, 1000)
    assert not cache.budget.room(200, 0.5, ())
    less = cache.put(2, 10)
    assert cache.budget.room(100, 0.6, ())
    assert less not in cache.tree.checkpoints


def test_a_state_that_is_larger_than_was_said_is_not_kept() -> None:
    cache = Cache(limit=250)
    cache.put(1, 100)
    assert cache.budget.put(as_tokens([2]), Data(151), Why.END, logits=False) is None
    assert cache.tree.nbytes == 100
