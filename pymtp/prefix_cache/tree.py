"""A radix tree over token sequences: checkpoints of their states, and their K and V in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from pymtp.prefix_cache.checkpoints import CheckpointReason

Tokens: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]


def as_tokens(tokens: Sequence[int] | Tokens) -> Tokens:
    """Copy tokens to an array that lookups compare."""
    return np.array(tokens, dtype=np.int32)


def common_prefix_length(a: Tokens, b: Tokens) -> int:
    """Return the number of leading tokens that are equal."""
    n = min(len(a), len(b))
    if not n or a[0] != b[0]:
        return 0
    differ = a[:n] != b[:n]
    first = int(differ.argmax())
    return first if differ[first] else n


class KvBlock:
    """K and V of consecutive tokens of a path in host memory, the first one at `start`: a row per token.

    Nodes that split the tokens between them share the block. Its bytes count until the last of them releases it.
    """

    __slots__ = ("data", "ref_count", "start")

    def __init__(self, start: int, data: Bytes) -> None:
        self.start, self.data, self.ref_count = start, data, 0


class BlockSlice(NamedTuple):
    """The part of a block that belongs to one node: the tokens between two positions of the path."""

    block: KvBlock
    start: int
    end: int

    @property
    def cells(self) -> Bytes:
        """Return its rows of K and V."""
        return self.block.data[self.start - self.block.start : self.end - self.block.start]


class Checkpoint:
    """The state of the recurrent layers and of the head after the last token of a node.

    reason: why it was taken.
    has_logits: whether the state includes the logits of that token.
    clock: the eviction clock when it was taken, or used last; see `EvictionPolicy`.
    uses: how often it was used.
    """

    __slots__ = ("clock", "has_logits", "reason", "state", "uses")

    def __init__(self, state: Bytes, reason: CheckpointReason, has_logits: bool, clock: float = 0.0) -> None:
        self.state, self.reason, self.has_logits, self.clock, self.uses = state, reason, has_logits, clock, 0


class RadixNode:
    """Consecutive tokens of a path, up to a checkpoint or to a branch.

    slices: their K and V in host memory; None if they are not there. Then none of the nodes below have K and V there.
    """

    __slots__ = ("__weakref__", "_parent", "checkpoint", "children", "slices", "start", "tokens")

    def __init__(self, parent: RadixNode | None, start: int, tokens: Tokens) -> None:
        self.parent, self.start, self.tokens = parent, start, tokens
        self.children: dict[int, RadixNode] = {}
        self.slices: list[BlockSlice] | None = None
        self.checkpoint: Checkpoint | None = None

    @property
    def parent(self) -> RadixNode | None:
        """Return the node above; None for the root."""
        return None if self._parent is None else self._parent()

    @parent.setter
    def parent(self, parent: RadixNode | None) -> None:
        self._parent = None if parent is None else ref(parent)  # no cycle: a dropped tree frees its memory at once

    @property
    def end(self) -> int:
        """Return the number of tokens from the beginning of the path to the end of the node."""
        return self.start + len(self.tokens)

    @property
    def on_host(self) -> bool:
        """Tell whether host memory has all K and V up to the node's end."""
        return self.slices is not None

    def ancestors(self) -> Iterator[RadixNode]:
        """Yield the nodes above, the nearest first, without the root."""
        node = self.parent
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def previous_checkpoint(self) -> int:
        """Return the position of the nearest checkpoint above; 0 if there is none."""
        return next((node.end for node in self.ancestors() if node.checkpoint is not None), 0)


class RadixTree:
    """A radix tree that holds nothing without a checkpoint that needs it.

    Each node has a checkpoint or at least two children. K and V reach as far as the last checkpoint that needs them.
    """

    def __init__(self) -> None:
        self.root = RadixNode(None, 0, as_tokens([]))
        self.root.slices = []
        self.nbytes = 0  # blocks and checkpoints
        self.n_tokens = 0  # tokens with K and V in host memory
        self.n_nodes = 0  # without the root
        self.checkpoints: dict[RadixNode, None] = {}  # the nodes that have one, in order of insertion
        self.consistent = True  # False after a change was interrupted
        self.changed = True  # since the eviction policy last computed all priorities

    def match_prefix(self, tokens: Tokens) -> tuple[list[RadixNode], int]:
        """Return the nodes that the tokens begin with, and the number of tokens that the tree has.

        That number exceeds the end of the last node where the tokens branch off, or end, within a node.
        """
        path: list[RadixNode] = []
        node, n = self.root, 0
        while n < len(tokens):
            child = node.children.get(int(tokens[n]))
            if child is None:
                break
            n_equal = common_prefix_length(child.tokens, tokens[n:])
            n += n_equal
            if n_equal < len(child.tokens):
                break
            path.append(child)
            node = child
        return path, n

    def tokens_on_host(self, tokens: Tokens) -> int:
        """Return how many of the tokens, from the first on, have K and V in host memory."""
        path, n = self.match_prefix(tokens)
        for node in path:
            if not node.on_host:
                return node.start
        node = path[-1] if path else self.root
        return n if n > node.end and node.children[int(tokens[node.end])].on_host else node.end

    def insert(self, tokens: Tokens, checkpoint: Checkpoint) -> RadixNode:
        """Insert a checkpoint after these tokens, or replace the one that is there."""
        consistent, self.consistent, self.changed = self.consistent, False, True
        path, n = self.match_prefix(tokens)
        node = path[-1] if path else self.root
        if n > node.end:  # within a child
            node = self._split(node.children[int(tokens[node.end])], n)
        if n < len(tokens):
            child = RadixNode(node, n, tokens[n:].copy())
            node.children[int(tokens[n])] = child
            self.n_nodes += 1
            node = child
        if node.checkpoint is not None:
            self.nbytes -= node.checkpoint.state.nbytes
        node.checkpoint = checkpoint
        self.nbytes += checkpoint.state.nbytes
        self.checkpoints[node] = None
        self.consistent = consistent
        return node

    def add_cells(self, node: RadixNode, slices: Sequence[BlockSlice]) -> None:
        """Add the K and V, up to the node's end, that host memory lacks: slices of new blocks."""
        consistent, self.consistent = self.consistent, False
        self.nbytes += sum(part.block.data.nbytes for part in slices)
        for member in [node, *node.ancestors()]:
            if member.slices is None:
                member.slices = _clip(slices, member.start, member.end)
                self.n_tokens += len(member.tokens)
                for part in member.slices:
                    part.block.ref_count += 1
        self.consistent = consistent

    def free_cells(self, path: Sequence[RadixNode]) -> bool:
        """Free K and V from the end of a path upwards while no node below has any; tell whether any were freed."""
        n_tokens, self.consistent = self.n_tokens, False
        for node in reversed(path):
            if any(child.on_host for child in node.children.values()):
                break
            self._release_slices(node)
        self.consistent = True
        return self.n_tokens < n_tokens

    def cells(self, node: RadixNode, start: int) -> list[BlockSlice]:
        """Return the K and V from a position to the end of a node that is on the host, in order."""
        slices: list[BlockSlice] = []
        for member in reversed([node, *node.ancestors()]):
            slices += _clip(member.slices or (), start, member.end)
        return slices

    def remove_checkpoint(self, node: RadixNode) -> None:
        """Remove a checkpoint, and the nodes, K and V that only it needed."""
        assert node.checkpoint is not None
        consistent, self.consistent, self.changed = self.consistent, False, True
        self.nbytes -= node.checkpoint.state.nbytes
        node.checkpoint = None
        del self.checkpoints[node]
        self._prune(node)
        self.consistent = consistent

    def _release_slices(self, node: RadixNode) -> None:
        if node.slices is not None:
            self.n_tokens -= len(node.tokens)
            for block, _, _ in node.slices:
                block.ref_count -= 1
                if not block.ref_count:
                    self.nbytes -= block.data.nbytes
            node.slices = None

    def _split(self, node: RadixNode, n: int) -> RadixNode:
        """Insert a node that ends at n above this one, which keeps the tokens after it; return the new node."""
        parent = node.parent
        assert parent is not None
        upper = RadixNode(parent, node.start, node.tokens[: n - node.start].copy())
        parent.children[int(upper.tokens[0])] = upper
        node.tokens = node.tokens[n - node.start :].copy()
        node.start, node.parent = n, upper
        upper.children[int(node.tokens[0])] = node
        self.n_nodes += 1
        if node.slices is not None:
            for block, start, end in node.slices:
                block.ref_count += start < n < end
            upper.slices, node.slices = _clip(node.slices, 0, n), _clip(node.slices, n, node.end)
        return upper

    def _prune(self, node: RadixNode) -> None:
        """Remove or merge the node and those above it while they have no checkpoint and no branch."""
        while (parent := node.parent) is not None and node.checkpoint is None:
            if not any(child.on_host for child in node.children.values()):
                self._release_slices(node)
            if not node.children:
                del parent.children[int(node.tokens[0])]
                self.n_nodes -= 1
            elif len(node.children) == 1:
                self._merge_into_child(node)
                self.n_nodes -= 1
            node = parent

    def _merge_into_child(self, node: RadixNode) -> None:
        """Put the only child in the place of the node."""
        parent = node.parent
        assert parent is not None
        (child,) = node.children.values()
        if child.slices is not None:
            assert node.slices is not None
            last, first = node.slices[-1], child.slices[0]
            if last.block is first.block:
                last.block.ref_count -= 1
                child.slices[0] = BlockSlice(last.block, last.start, first.end)
                node.slices.pop()
            child.slices[:0] = node.slices
            node.slices = None
        child.tokens = np.concatenate([node.tokens, child.tokens])
        child.start, child.parent = node.start, parent
        parent.children[int(node.tokens[0])] = child


def _clip(slices: Iterable[BlockSlice], start: int, end: int) -> list[BlockSlice]:
    """Return the parts of the slices that lie between two positions."""
    inside = [part for part in slices if part.start < end and part.end > start]
    return [BlockSlice(block, max(first, start), min(last, end)) for block, first, last in inside]
