"""A radix tree over what was read: checkpoints of the recurrent states, and the K and V before them in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from pymtp.prefix_cache.checkpoints import Why

Tokens: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]


def as_tokens(tokens: Sequence[int] | Tokens) -> Tokens:
    """An array of its own, for tokens that are looked up."""
    return np.array(tokens, dtype=np.int32)


def shared(a: Tokens, b: Tokens) -> int:
    """How many tokens both begin with."""
    n = min(len(a), len(b))
    if not n or a[0] != b[0]:
        return 0
    differ = a[:n] != b[:n]
    first = int(differ.argmax())
    return first if differ[first] else n


class Block:
    """K and V of some tokens of a path, from `start` on: a row a token. Where the path was split within them, two nodes
    or more have a part: the bytes count until the last of them lets go."""

    __slots__ = ("data", "refs", "start")

    def __init__(self, start: int, data: Bytes) -> None:
        self.start, self.data, self.refs = start, data, 0


class Part(NamedTuple):
    """What of a block is of a node: the tokens between two places of the path."""

    block: Block
    start: int
    end: int

    @property
    def cells(self) -> Bytes:
        """Its rows."""
        return self.block.data[self.start - self.block.start : self.end - self.block.start]


class Checkpoint:
    """What the recurrent layers and the head hold after the last token of a node.

    why: it was taken. logits: whether it holds those of that token, too. age: the clock when it was used last, or made;
    see prefix_budget. uses: how often it was.
    """

    __slots__ = ("age", "logits", "state", "uses", "why")

    def __init__(self, state: Bytes, why: Why, logits: bool, age: float = 0.0) -> None:
        self.state, self.why, self.logits, self.age, self.uses = state, why, logits, age, 0


class Node:
    """Some tokens of a path, up to a checkpoint or to where texts part.

    parts: their K and V in host memory; None where they are not there. Then they are nowhere below, either.
    """

    __slots__ = ("__weakref__", "_parent", "checkpoint", "children", "parts", "start", "tokens")

    def __init__(self, parent: Node | None, start: int, tokens: Tokens) -> None:
        self.parent, self.start, self.tokens = parent, start, tokens
        self.children: dict[int, Node] = {}
        self.parts: list[Part] | None = None
        self.checkpoint: Checkpoint | None = None

    @property
    def parent(self) -> Node | None:
        """The node that it follows; None for the root."""
        return None if self._parent is None else self._parent()

    @parent.setter
    def parent(self, parent: Node | None) -> None:
        self._parent = None if parent is None else ref(parent)  # no cycle: a tree that goes gives its memory back

    @property
    def end(self) -> int:
        """Tokens from the beginning of the path."""
        return self.start + len(self.tokens)

    @property
    def covered(self) -> bool:
        """Whether all K and V up to its end are in host memory."""
        return self.parts is not None

    def up(self) -> Iterator[Node]:
        """The nodes above, the next one first, without the root."""
        node = self.parent
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def before(self) -> int:
        """The place of the checkpoint above; 0 without one."""
        return next((node.end for node in self.up() if node.checkpoint is not None), 0)


class PrefixTree:
    """Nothing is held that no checkpoint needs: a node has a checkpoint or two children, and K and V reach as far as
    to the last checkpoint that they are meant for."""

    def __init__(self) -> None:
        self.root = Node(None, 0, as_tokens([]))
        self.root.parts = []
        self.nbytes = 0  # of blocks and checkpoints
        self.n_tokens = 0  # whose K and V are in host memory
        self.n_nodes = 0  # but for the root
        self.checkpoints: dict[Node, None] = {}  # their nodes, in the order of their making
        self.whole = True  # no change was broken off
        self.changed = True  # since who knows what goes first looked at all checkpoints

    def walk(self, tokens: Tokens) -> tuple[list[Node], int]:
        """The nodes that the tokens begin with, and how many tokens are found: more than to the end of the last node
        where the tokens part from the tree within a node, or end there."""
        path: list[Node] = []
        node, n = self.root, 0
        while n < len(tokens):
            child = node.children.get(int(tokens[n]))
            if child is None:
                break
            found = shared(child.tokens, tokens[n:])
            n += found
            if found < len(child.tokens):
                break
            path.append(child)
            node = child
        return path, n

    def covered(self, tokens: Tokens) -> int:
        """How many of the tokens have their K and V in host memory, from the first on."""
        path, n = self.walk(tokens)
        for node in path:
            if not node.covered:
                return node.start
        node = path[-1] if path else self.root
        return n if n > node.end and node.children[int(tokens[node.end])].covered else node.end

    def put(self, tokens: Tokens, checkpoint: Checkpoint) -> Node:
        """A checkpoint after these tokens, in place of one that is there."""
        whole, self.whole, self.changed = self.whole, False, True
        path, n = self.walk(tokens)
        node = path[-1] if path else self.root
        if n > node.end:  # within a child
            node = self._split(node.children[int(tokens[node.end])], n)
        if n < len(tokens):
            child = Node(node, n, tokens[n:].copy())
            node.children[int(tokens[n])] = child
            self.n_nodes += 1
            node = child
        if node.checkpoint is not None:
            self.nbytes -= node.checkpoint.state.nbytes
        node.checkpoint = checkpoint
        self.nbytes += checkpoint.state.nbytes
        self.checkpoints[node] = None
        self.whole = whole
        return node

    def cover(self, node: Node, parts: Sequence[Part]) -> None:
        """K and V of all tokens up to the node's end that are not in host memory yet, in new blocks."""
        whole, self.whole = self.whole, False
        self.nbytes += sum(part.block.data.nbytes for part in parts)
        for each in [node, *node.up()]:
            if each.parts is None:
                each.parts = _within(parts, each.start, each.end)
                self.n_tokens += len(each.tokens)
                for part in each.parts:
                    part.block.refs += 1
        self.whole = whole

    def uncover(self, path: Sequence[Node]) -> bool:
        """Lets go of K and V at the end of a path, as far up as none are there below. Whether there were any."""
        n_tokens, self.whole = self.n_tokens, False
        for node in reversed(path):
            if any(child.covered for child in node.children.values()):
                break
            self._release(node)
        self.whole = True
        return self.n_tokens < n_tokens

    def cells(self, node: Node, start: int) -> list[Part]:
        """K and V from a place to the end of a covered node, in order."""
        found: list[Part] = []
        for each in reversed([node, *node.up()]):
            found += _within(each.parts or (), start, each.end)
        return found

    def drop(self, node: Node) -> None:
        """Takes out a checkpoint, and what only it needed."""
        assert node.checkpoint is not None
        whole, self.whole, self.changed = self.whole, False, True
        self.nbytes -= node.checkpoint.state.nbytes
        node.checkpoint = None
        del self.checkpoints[node]
        self._trim(node)
        self.whole = whole

    def _release(self, node: Node) -> None:
        if node.parts is not None:
            self.n_tokens -= len(node.tokens)
            for block, _, _ in node.parts:
                block.refs -= 1
                if not block.refs:
                    self.nbytes -= block.data.nbytes
            node.parts = None

    def _split(self, node: Node, n: int) -> Node:
        """A node that ends at n above this one, which keeps what comes after it."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.start, node.tokens[: n - node.start].copy())
        parent.children[int(upper.tokens[0])] = upper
        node.tokens = node.tokens[n - node.start :].copy()
        node.start, node.parent = n, upper
        upper.children[int(node.tokens[0])] = node
        self.n_nodes += 1
        if node.parts is not None:
            for block, start, end in node.parts:
                block.refs += start < n < end
            upper.parts, node.parts = _within(node.parts, 0, n), _within(node.parts, n, node.end)
        return upper

    def _trim(self, node: Node) -> None:
        while (parent := node.parent) is not None and node.checkpoint is None:
            if not any(child.covered for child in node.children.values()):
                self._release(node)
            if not node.children:
                del parent.children[int(node.tokens[0])]
                self.n_nodes -= 1
            elif len(node.children) == 1:
                self._merge(node)
                self.n_nodes -= 1
            node = parent

    def _merge(self, node: Node) -> None:
        """The only child takes the node's place."""
        parent = node.parent
        assert parent is not None
        (child,) = node.children.values()
        if child.parts is not None:
            assert node.parts is not None
            last, first = node.parts[-1], child.parts[0]
            if last.block is first.block:
                last.block.refs -= 1
                child.parts[0] = Part(last.block, last.start, first.end)
                node.parts.pop()
            child.parts[:0] = node.parts
            node.parts = None
        child.tokens = np.concatenate([node.tokens, child.tokens])
        child.start, child.parent = node.start, parent
        parent.children[int(node.tokens[0])] = child


def _within(parts: Iterable[Part], start: int, end: int) -> list[Part]:
    """What of the parts is between two places."""
    return [Part(b, max(first, start), min(last, end)) for b, first, last in parts if first < end and last > start]
