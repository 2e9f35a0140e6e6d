"""Tests of the eviction policy: which checkpoints leave host memory when it is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pymtp.prefix_cache.checkpoints import INITIAL_WEIGHTS, EvictionPolicy
from pymtp.prefix_cache.tree import BlockSlice, CheckpointReason, KvBlock, RadixNode, RadixTree, as_tokens


@dataclass
class Data:
    nbytes: int


class Cache:
    """A radix tree with its eviction policy, for checkpoints of 100 bytes, and K and V of one byte per token."""

    def __init__(self, limit: int = 10**6) -> None:
        self.tree = RadixTree()
        self.eviction = EvictionPolicy(self.tree, limit, 1, lambda start, end: float(end - start))

    def put(
        self, text: int, n: int, reason: CheckpointReason = CheckpointReason.BRANCH_SEEN, nbytes: int = 100
    ) -> RadixNode:
        """Insert a checkpoint after n tokens of a text. Texts of different numbers have no common prefix."""
        node = self.eviction.insert(as_tokens([text] * n), Data(nbytes), reason, has_logits=False)
        assert node is not None
        return node

    def cover(self, node: RadixNode, start: int = 0) -> RadixNode:
        self.tree.add_cells(node, [BlockSlice(KvBlock(start, Data(node.end - start)), start, node.end)])
        return node

    def order(self, keep: Sequence[RadixNode] = ()) -> list[RadixNode]:
        """Evict all checkpoints except those to keep, and return the evicted ones in the order of their eviction."""
        evicted: list[RadixNode] = []
        while left := [node for node in self.tree.checkpoints if node not in keep]:
            self.eviction.limit = self.tree.nbytes
            assert self.eviction.make_room(1, 1e9, keep)
            evicted += [node for node in left if node not in self.tree.checkpoints]
        return evicted


def test_checkpoint_that_saves_least_prefill_per_byte_is_evicted_first() -> None:
    cache = Cache()
    valuable, cheap, large = cache.put(1, 500), cache.put(2, 100), cache.put(3, 500, nbytes=600)
    assert cache.order() == [large, cheap, valuable]


def test_saved_prefill_counts_from_the_previous_checkpoint() -> None:
    cache = Cache()
    first, second, third = (cache.put(1, n, nbytes=1000) for n in (1000, 1100, 1500))
    assert cache.order() == [second, third, first]


def test_priority_of_a_checkpoint_rises_when_the_previous_one_is_removed() -> None:
    cache = Cache()
    first, second = cache.put(1, 300), cache.put(1, 400)
    alone = cache.eviction.priority(second)
    cache.tree.remove_checkpoint(first)
    assert cache.eviction.priority(second) > alone


def test_valuable_checkpoint_is_evicted_if_it_was_not_used_for_long() -> None:
    cache = Cache(limit=1000)
    valuable = cache.put(1, 900)
    for text in range(2, 400):
        priority = cache.eviction.clock + cache.eviction.value_per_byte(0, 90, 100, cells=90)
        assert cache.eviction.make_room(100, priority, ())
        cache.put(text, 90)
    assert valuable not in cache.tree.checkpoints


def test_popular_checkpoint_is_evicted_after_several_new_ones_were_refused() -> None:
    cache = Cache(limit=150)
    node = cache.put(1, 100)
    for _ in range(8):
        cache.eviction.touch(node)
    refused = 0
    while not cache.eviction.make_room(
        100, cache.eviction.clock + cache.eviction.value_per_byte(0, 100, 100, cells=100), ()
    ):
        refused += 1
        assert refused < 10
    assert refused
    assert node not in cache.tree.checkpoints


def test_repeatedly_used_checkpoint_is_not_evicted() -> None:
    cache = Cache(limit=1000)
    used, other = cache.put(1, 100), cache.put(2, 100)
    for text in range(3, 400):
        priority = cache.eviction.clock + cache.eviction.value_per_byte(0, 90, 100, cells=90)
        assert cache.eviction.make_room(100, priority, ())
        cache.put(text, 90)
        cache.eviction.touch(used)
    assert used in cache.tree.checkpoints
    assert other not in cache.tree.checkpoints


def test_checkpoints_that_will_likely_be_used_are_evicted_last() -> None:
    cache = Cache()
    step, end = cache.put(1, 200, CheckpointReason.INTERVAL), cache.put(2, 190, CheckpointReason.PROMPT_END)
    seen, expected = (
        cache.put(3, 110, CheckpointReason.BRANCH_SEEN),
        cache.put(4, 100, CheckpointReason.BRANCH_EXPECTED),
    )
    often = cache.put(5, 100, CheckpointReason.INTERVAL)
    for _ in range(3):
        cache.eviction.touch(often)
    assert cache.order() == [end, step, expected, seen, often]


def test_past_turn_of_a_chat_is_evicted_before_the_current_one() -> None:
    cache = Cache()
    past = cache.put(1, 1000, CheckpointReason.BRANCH_EXPECTED)
    cache.eviction.touch(past)
    here = cache.put(1, 1200, CheckpointReason.BRANCH_EXPECTED)
    assert cache.order() == [past, here]


def test_eviction_of_a_checkpoint_keeps_the_k_and_v_that_later_checkpoints_need() -> None:
    cache = Cache()
    first = cache.put(1, 200, CheckpointReason.INTERVAL)
    last = cache.cover(cache.put(1, 1000))
    assert cache.order(keep=[last]) == [first]
    assert (cache.tree.n_tokens, cache.eviction.evicted_tokens) == (1000, 0)


def test_k_and_v_are_freed_with_the_last_checkpoint_that_needs_them() -> None:
    cache = Cache()
    first = cache.put(1, 200)
    last = cache.cover(cache.put(1, 1000))
    assert cache.order(keep=[first]) == [last]
    # blocks are freed as a whole: the first checkpoint still needs a part of this block
    assert (cache.tree.n_tokens, cache.tree.nbytes) == (200, 100 + 1000)
    assert cache.eviction.evicted_tokens == 800


def test_k_and_v_count_as_bytes_of_the_last_checkpoint_that_needs_them() -> None:
    cache = Cache()
    short, long = cache.put(1, 100), cache.put(2, 1000)
    assert cache.eviction.priority(short) == 100 / (100 + 100)
    assert cache.eviction.priority(long) == 1000 / (100 + 1000)
    between = cache.put(2, 400)
    assert cache.eviction.priority(between) == 400 / 100
    assert cache.eviction.priority(long) == 600 / (100 + 600)


def test_protected_checkpoints_are_not_evicted_even_if_there_is_no_room() -> None:
    cache = Cache(limit=250)
    nodes = [cache.put(1, 100), cache.put(2, 100)]
    assert not cache.eviction.make_room(100, 1e9, nodes)
    assert cache.eviction.make_room(100, 1e9, nodes[:1])
    assert list(cache.tree.checkpoints) == nodes[:1]


def test_no_checkpoint_is_evicted_for_a_less_valuable_or_oversized_one() -> None:
    cache = Cache(limit=250)
    nodes = [cache.put(1, 100), cache.put(2, 100)]
    assert not cache.eviction.make_room(100, 0.4, ())
    assert not cache.eviction.make_room(251, 1e9, ())
    assert list(cache.tree.checkpoints) == nodes
    assert cache.eviction.clock < 0.5


@pytest.mark.parametrize("priority", [1e9, 0.1])
def test_eviction_does_not_compute_all_priorities_each_time(priority: float, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, n_computed = Cache(limit=100 * 2000), 0
    for text in range(2000):
        cache.put(text, 100)
    priority_of = EvictionPolicy.priority

    def counted(self: EvictionPolicy, node: RadixNode) -> float:
        nonlocal n_computed
        n_computed += 1
        return priority_of(self, node)

    monkeypatch.setattr(EvictionPolicy, "priority", counted)
    for text in range(2000, 2100):
        if cache.eviction.make_room(100, priority, ()):
            cache.put(text, 100)
    assert n_computed < 100 * 200
    assert len(cache.tree.checkpoints) >= 2000 - 2000 // 64


def test_eviction_after_a_refusal_sees_priorities_that_have_fallen_since() -> None:
    weight = INITIAL_WEIGHTS[CheckpointReason.BRANCH_EXPECTED]
    cache = Cache(limit=200)  # a used turn of a chat is evicted, since the chat has a later turn
    past, here = (
        cache.put(1, 100, CheckpointReason.BRANCH_EXPECTED),
        cache.put(1, 300, CheckpointReason.BRANCH_EXPECTED),
    )
    assert not cache.eviction.make_room(100, 0.5 * weight, ())
    cache.eviction.touch(past)
    assert cache.eviction.make_room(100, 0.6 * weight, ())
    assert list(cache.tree.checkpoints) == [here]

    cache = Cache(limit=200)  # K and V that two checkpoints shared count for the remaining one
    first, second = (
        cache.eviction.insert(
            as_tokens([1] * 200 + [i] * 100), Data(100), CheckpointReason.BRANCH_EXPECTED, has_logits=False
        )
        for i in (2, 3)
    )
    assert first is not None
    assert second is not None
    assert not cache.eviction.make_room(200, 1.0 * weight, ())
    cache.tree.remove_checkpoint(first)
    assert cache.eviction.make_room(200, 1.0 * weight, ())
    assert not cache.tree.checkpoints

    cache = Cache(limit=200)
    cache.put(1, 1000)
    assert not cache.eviction.make_room(200, 0.5, ())
    cheap = cache.put(2, 10)
    assert cache.eviction.make_room(100, 0.6, ())
    assert cheap not in cache.tree.checkpoints


def test_state_larger_than_the_free_host_memory_is_not_inserted() -> None:
    cache = Cache(limit=250)
    cache.put(1, 100)
    assert cache.eviction.insert(as_tokens([2]), Data(151), CheckpointReason.PROMPT_END, has_logits=False) is None
    assert cache.tree.nbytes == 100
