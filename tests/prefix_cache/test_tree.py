"""Claims about the tree itself: what is found, what is counted, and what goes with what."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pymtp.prefix_cache.checkpoints import Why
from pymtp.prefix_cache.tree import Block, Checkpoint, Node, Part, PrefixTree, as_tokens, shared


@dataclass
class Data:
    nbytes: int


def put(tree: PrefixTree, *tokens: int, nbytes: int = 100) -> Node:
    return tree.put(as_tokens(tokens), Checkpoint(Data(nbytes), Why.END, False))


def cover(tree: PrefixTree, node: Node, nbytes: int, *places: int) -> None:
    """K and V between the places, in a block each of so many bytes."""
    parts = [Part(Block(places[i], Data(nbytes)), places[i], places[i + 1]) for i in range(len(places) - 1)]
    tree.cover(node, parts)


def ranges(tree: PrefixTree, node: Node, start: int = 0) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in tree.cells(node, start)]


def test_a_walk_finds_what_a_dict_of_all_prefixes_finds() -> None:
    random = Random(3)
    for _ in range(200):
        tree, texts = PrefixTree(), []
        for _ in range(random.randrange(12)):
            base = random.choice([(), *texts])
            text = base[: random.randrange(len(base) + 1)] + tuple(random.choices(range(2), k=random.randint(1, 6)))
            texts.append(text)
            put(tree, *text)
        known = {text[:n] for text in texts for n in range(len(text) + 1)}
        for _ in range(20):
            asked = tuple(random.choices(range(2), k=random.randint(1, 16)))
            path, n = tree.walk(as_tokens(asked))
            assert n == max(n for n in range(len(asked) + 1) if n == 0 or asked[:n] in known)
            ends = [node.end for node in path if node.checkpoint is not None]
            assert ends == [n for n in range(1, len(asked) + 1) if asked[:n] in texts]


def test_shared_counts_equal_tokens_up_to_the_first_that_differs() -> None:
    a = as_tokens(range(1000))
    b = a.copy()
    assert shared(a, b) == shared(a[:500], b) * 2 == 1000
    b[700] = 7
    b[0:0] = 0
    assert shared(a, b) == 700
    b[0] = 9
    assert shared(a, b) == shared(a, a[:0]) == 0


def test_a_checkpoint_within_what_is_covered_is_covered() -> None:
    tree = PrefixTree()
    cover(tree, put(tree, 1, 2, 3, 4, 5, 6), 30, 0, 4, 6)
    middle = put(tree, 1, 2, 3)
    assert middle.covered
    assert ranges(tree, middle) == [(0, 3)]
    assert ranges(tree, middle, 2) == [(2, 3)]
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (260, 6, 2)


def test_bytes_that_two_texts_share_count_once_and_until_both_are_gone() -> None:
    tree = PrefixTree()
    one = put(tree, 1, 2, 3, 4, 5)
    cover(tree, one, 50, 0, 5)
    other = put(tree, 1, 2, 3, 9)
    cover(tree, other, 10, 3, 4)
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (260, 6, 3)
    tree.drop(one)  # its last two tokens are of the block that the other begins with
    assert ranges(tree, other) == [(0, 3), (3, 4)]
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (160, 4, 1)
    tree.drop(other)
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (0, 0, 0)


def test_the_k_and_v_before_a_checkpoint_stay_while_one_after_it_needs_them() -> None:
    tree = PrefixTree()
    first, last = put(tree, 1, 2), put(tree, 1, 2, 3, 4)
    cover(tree, last, 10, 0, 2, 4)
    tree.drop(first)
    assert tree.n_tokens == 4
    assert ranges(tree, last) == [(0, 2), (2, 4)]


def test_k_and_v_that_no_checkpoint_in_host_memory_needs_go() -> None:
    tree = PrefixTree()
    first, last = put(tree, 1, 2), put(tree, 1, 2, 3, 4)
    cover(tree, first, 10, 0, 2)
    tree.drop(first)  # the K and V of the other are in a sequence
    assert not last.covered
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (100, 0, 1)


def test_what_is_split_and_joined_again_is_as_before() -> None:
    tree = PrefixTree()
    node = put(tree, *range(12))
    cover(tree, node, 10, 0, 5, 10, 12)
    for n in (3, 5, 7, 11, 4):
        tree.drop(put(tree, *range(n)))
    for n in (3, 4, 5, 7, 11):
        put(tree, *range(n))
    for n in (7, 5, 11, 3, 4):
        path, _ = tree.walk(as_tokens(range(n)))
        tree.drop(path[-1])
    assert ranges(tree, node) == [(0, 5), (5, 10), (10, 12)]
    assert [part.block.refs for part in tree.cells(node, 0)] == [1, 1, 1]
    assert (tree.nbytes, tree.n_tokens, tree.n_nodes) == (130, 12, 1)


def test_k_and_v_are_let_go_from_the_end_of_a_path_as_far_as_nothing_below_needs_them() -> None:
    tree = PrefixTree()
    first, second = put(tree, 1, 2, 3, 4), put(tree, 1, 2, 5, 6)
    cover(tree, first, 10, 0, 2, 4)
    cover(tree, second, 10, 2, 4)
    n = tree.nbytes
    assert tree.uncover(tree.walk(as_tokens([1, 2, 3, 4]))[0])
    assert (first.covered, second.covered, tree.n_tokens, tree.nbytes) == (False, True, 4, n - 10)
    assert not tree.uncover(tree.walk(as_tokens([1, 2, 3, 4]))[0])
    assert tree.uncover(tree.walk(as_tokens([1, 2, 5, 6, 7]))[0])
    assert (second.covered, tree.n_tokens, tree.nbytes) == (False, 0, n - 30)
    assert len(tree.checkpoints) == 2
