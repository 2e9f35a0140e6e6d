"""Tests of the radix tree: lookups, counters, and when K and V are freed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pymtp.prefix_cache.tree import (
    BlockSlice,
    Checkpoint,
    CheckpointReason,
    KvBlock,
    RadixNode,
    RadixTree,
    as_tokens,
    common_prefix_length,
)


@dataclass
class Data:
    nbytes: int


def put(tree: RadixTree, *tokens: int, nbytes: int = 100) -> RadixNode:
    return tree.insert(as_tokens(tokens), Checkpoint(Data(nbytes), CheckpointReason.PROMPT_END, False))


def add_cells(tree: RadixTree, node: RadixNode, nbytes: int, *positions: int) -> None:
    """Add the K and V between each two neighboring positions, in a block of nbytes bytes each."""
    slices = [
        BlockSlice(KvBlock(positions[i], Data(nbytes)), positions[i], positions[i + 1])
        for i in range(len(positions) - 1)
    ]
    tree.add_cells(node, slices)


def ranges(tree: RadixTree, node: RadixNode, start: int = 0) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in tree.cells(node, start)]


def test_match_prefix_agrees_with_a_set_of_all_prefixes() -> None:
    random = Random(3)
    for _ in range(200):
        tree, texts = RadixTree(), []
        for _ in range(random.randrange(12)):
            base = random.choice([(), *texts])
            text = base[: random.randrange(len(base) + 1)] + tuple(random.choices(range(2), k=random.randint(1, 6)))
            texts.append(text)
            put(tree, *text)
        known = {text[:n] for text in texts for n in range(len(text) + 1)}
        for _ in range(20):
            query = tuple(random.choices(range(2), k=random.randint(1, 16)))
            path, n = tree.match_prefix(as_tokens(query))
            assert n == max(n for n in range(len(query) + 1) if n == 0 or query[:n] in known)
            ends = [node.end for node in path if node.checkpoint is not None]
            assert ends == [n for n in range(1, len(query) + 1) if query[:n] in texts]


def test_common_prefix_length_counts_tokens_up_to_the_first_difference() -> None:
    a = as_tokens(range(1000))
    b = a.copy()
    assert common_prefix_length(a, b) == common_prefix_length(a[:500], b) * 2 == 1000
    b[700] = 7
    b[0:0] = 0
    assert common_prefix_length(a, b) == 700
    b[0] = 9
    assert common_prefix_length(a, b) == common_prefix_length(a, a[:0]) == 0


def test_checkpoint_within_a_node_with_k_and_v_has_k_and_v() -> None:
    tree = RadixTree()
    add_cells(tree, put(tree, 1, 2, 3, 4, 5, 6), 30, 0, 4, 6)
    middle = put(tree, 1, 2, 3)
    assert middle.on_host
    assert ranges(tree, middle) == [(0, 3)]
    assert ranges(tree, middle, 2) == [(2, 3)]
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (260, 6, 2)


def test_block_shared_by_two_texts_counts_once_until_both_texts_are_removed() -> None:
    tree = RadixTree()
    first = put(tree, 1, 2, 3, 4, 5)
    add_cells(tree, first, 50, 0, 5)
    second = put(tree, 1, 2, 3, 9)
    add_cells(tree, second, 10, 3, 4)
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (260, 6, 3)
    tree.remove_checkpoint(first)  # the block stays: the second text begins with the same tokens
    assert ranges(tree, second) == [(0, 3), (3, 4)]
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (160, 4, 1)
    tree.remove_checkpoint(second)
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (0, 0, 0)


def test_k_and_v_stay_while_a_later_checkpoint_needs_them() -> None:
    tree = RadixTree()
    first, last = put(tree, 1, 2), put(tree, 1, 2, 3, 4)
    add_cells(tree, last, 10, 0, 2, 4)
    tree.remove_checkpoint(first)
    assert tree.n_tokens == 4
    assert ranges(tree, last) == [(0, 2), (2, 4)]


def test_k_and_v_without_a_checkpoint_that_needs_them_are_freed() -> None:
    tree = RadixTree()
    first, last = put(tree, 1, 2), put(tree, 1, 2, 3, 4)
    add_cells(tree, first, 10, 0, 2)
    tree.remove_checkpoint(first)  # the K and V of the last checkpoint are in a sequence
    assert not last.on_host
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (100, 0, 1)


def test_nodes_that_were_split_and_merged_have_their_old_k_and_v() -> None:
    tree = RadixTree()
    node = put(tree, *range(12))
    add_cells(tree, node, 10, 0, 5, 10, 12)
    for n in (3, 5, 7, 11, 4):
        tree.remove_checkpoint(put(tree, *range(n)))
    for n in (3, 4, 5, 7, 11):
        put(tree, *range(n))
    for n in (7, 5, 11, 3, 4):
        path, _ = tree.match_prefix(as_tokens(range(n)))
        tree.remove_checkpoint(path[-1])
    assert ranges(tree, node) == [(0, 5), (5, 10), (10, 12)]
    assert [part.block.ref_count for part in tree.cells(node, 0)] == [1, 1, 1]
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (130, 12, 1)


def test_free_cells_frees_k_and_v_from_the_end_of_a_path_up_to_a_branch_with_k_and_v() -> None:
    tree = RadixTree()
    first, second = put(tree, 1, 2, 3, 4), put(tree, 1, 2, 5, 6)
    add_cells(tree, first, 10, 0, 2, 4)
    add_cells(tree, second, 10, 2, 4)
    n = tree.nbytes
    assert tree.free_cells(tree.match_prefix(as_tokens([1, 2, 3, 4]))[0])
    assert (first.on_host, second.on_host, tree.n_tokens, tree.nbytes) == (False, True, 4, n - 10)
    assert not tree.free_cells(tree.match_prefix(as_tokens([1, 2, 3, 4]))[0])
    assert tree.free_cells(tree.match_prefix(as_tokens([1, 2, 5, 6, 7]))[0])
    assert (second.on_host, tree.n_tokens, tree.nbytes) == (False, 0, n - 30)
    assert len(tree.checkpoints) == 2
