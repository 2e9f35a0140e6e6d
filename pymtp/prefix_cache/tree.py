"""A radix tree over token sequences, with checkpoints of their states, and their K and V in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias
from weakref import ref

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]


class Space(NamedTuple):
    """Separates cached prefixes: a prompt continues prefixes of its own space, and public ones, and no others.

    owner: a digest of the API key that the prompt was sent with; "" without a key. Host memory is shared by owner.
    salt: SamplingParams.cache_salt.
    only: None; or an object, so that prompts share a sequence only with prompts that have the same object, and leave
        nothing in host memory.
    """

    owner: str = ""
    salt: str = ""
    only: object = None


COMMON = Space()  # the space of prompts without key and salt, and of prefix files


def as_tokens(tokens: Sequence[int] | Tokens) -> Tokens:
    """Copy tokens to an array of the type that lookups compare."""
    return np.array(tokens, dtype=np.int32)


def common_prefix_length(a: Tokens, b: Tokens) -> int:
    """Return the number of leading tokens that a and b have in common."""
    n = min(len(a), len(b))
    if not n or a[0] != b[0]:
        return 0
    differ = a[:n] != b[:n]
    first = int(differ.argmax())
    return first if differ[first] else n


class KvBlock:
    """The K and V of consecutive tokens of a path, from position `start` on, in host memory: a row per token.

    Several nodes share the block if each has some of the tokens. Its bytes count until the last node releases it.
    """

    __slots__ = ("data", "owner", "ref_count", "start")

    def __init__(self, start: int, data: Bytes, owner: str = "") -> None:
        self.start, self.data, self.owner, self.ref_count = start, data, owner, 0


class BlockSlice(NamedTuple):
    """The part of a KV block that belongs to one node: its tokens from `start` to `end`, counted from the root."""

    block: KvBlock
    start: int
    end: int

    @property
    def cells(self) -> Bytes:
        """Return the rows of K and V of the slice."""
        return self.block.data[self.start - self.block.start : self.end - self.block.start]


class CheckpointReason(IntEnum):
    """The reason for a checkpoint: the lower the value, the stronger the reason."""

    BRANCH_SEEN = 0  # another text branched off here
    BRANCH_EXPECTED = 1  # the caller expects later prompts to branch off here
    NEAR_END = 2  # near the end of a prompt that continues another text: the next turn of a chat may branch off here
    PROMPT_END = 3  # the same whole prompt may be sent again
    INTERVAL = 4  # one of several in a long prompt, so that one is near wherever another prompt branches off
    SEQUENCE_END = 5  # at the end of a sequence, taken when it is spilled: prefill never stops for it


class Checkpoint:
    """The state of the recurrent layers and of the head after the last token of a node.

    reason: why the checkpoint was taken.
    has_logits: whether the state includes the logits of that token.
    clock: the eviction clock when the checkpoint was taken or last used; see `EvictionPolicy`.
    uses: how often prompts continued from the checkpoint.
    public: whether prompts of all spaces may continue from it, because a prefix file has it.
    kept: whether it, and the K and V before it, stay in host memory whatever else needs room.
    """

    __slots__ = ("clock", "has_logits", "kept", "public", "reason", "state", "uses")

    def __init__(self, state: Bytes, reason: CheckpointReason, has_logits: bool, clock: float = 0.0) -> None:
        self.state, self.reason, self.has_logits, self.clock, self.uses = state, reason, has_logits, clock, 0
        self.public = self.kept = False


class RadixNode:
    """A node of the tree: consecutive tokens of a path, up to a checkpoint or to a branch.

    slices: the K and V of the tokens in host memory; None if they are not there. In that case, host memory has no K and
        V of the nodes below, either.
    """

    __slots__ = ("__weakref__", "_parent", "checkpoint", "children", "slices", "space", "start", "tokens")

    def __init__(self, parent: RadixNode | None, start: int, tokens: Tokens, space: Space = COMMON) -> None:
        self.parent, self.start, self.tokens = parent, start, tokens
        self.space: Space = space if parent is None else parent.space
        self.children: dict[int, RadixNode] = {}
        self.slices: list[BlockSlice] | None = None
        self.checkpoint: Checkpoint | None = None

    @property
    def parent(self) -> RadixNode | None:
        """Return the node above; None for the root."""
        return None if self._parent is None else self._parent()

    @parent.setter
    def parent(self, parent: RadixNode | None) -> None:
        # a weak reference makes no cycle, so that a dropped tree frees its memory at once
        self._parent = None if parent is None else ref(parent)

    @property
    def end(self) -> int:
        """Return the number of tokens from the beginning of the path to the end of the node."""
        return self.start + len(self.tokens)

    @property
    def on_host(self) -> bool:
        """Return whether host memory has all K and V up to the node's end."""
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


def is_kept(node: RadixNode) -> bool:
    """Return whether the node has a checkpoint that is never evicted."""
    return node.checkpoint is not None and node.checkpoint.kept


class RadixTree:
    """A radix tree that holds only the tokens, K and V that some checkpoint needs. Each space has a root of its own.

    Each node has a checkpoint or at least two children. On each path, the K and V in host memory end at a checkpoint.
    """

    def __init__(self) -> None:
        self._roots: dict[Space, RadixNode] = {}  # COMMON and the spaces that have nodes
        self.root = self._root(COMMON)
        self.nbytes = 0  # size of all blocks and checkpoints
        self.owner_bytes: dict[str, int] = {}  # nbytes by the owners of the spaces, without zeros
        self.n_tokens = 0  # number of tokens with K and V in host memory
        self.n_nodes = 0  # number of nodes, without the root
        self.checkpoints: dict[RadixNode, None] = {}  # the nodes with a checkpoint, in order of insertion
        self.consistent = True  # False during a change, and after an interrupted one
        self.changed = True  # whether it changed since the eviction policy last computed all priorities

    def _root(self, space: Space) -> RadixNode:
        """Return the root of a space; make it if the space has no nodes."""
        root = self._roots.get(space)
        if root is None:
            root = self._roots[space] = RadixNode(None, 0, as_tokens([]), space)
            root.slices = []
        return root

    def _count_bytes(self, owner: str, n: int) -> None:
        self.nbytes += n
        self.owner_bytes[owner] = self.owner_bytes.get(owner, 0) + n
        if not self.owner_bytes[owner]:
            del self.owner_bytes[owner]

    def match_checkpoints(self, tokens: Tokens, space: Space = COMMON) -> list[RadixNode]:
        """Return the nodes along the tokens that have checkpoints for prompts of this space, in rising order."""
        nodes = [node for node in self.match_prefix(tokens, space)[0] if node.checkpoint is not None]
        if space == COMMON or space.only is not None:
            return nodes
        common = [node for node in self.match_prefix(tokens)[0] if node.checkpoint is not None]
        public = [node for node in common if node.checkpoint is not None and node.checkpoint.public]
        return sorted([*nodes, *public], key=_end) if public else nodes

    def match_prefix(self, tokens: Tokens, space: Space = COMMON) -> tuple[list[RadixNode], int]:
        """Return the nodes of a space along the tokens, and the number of leading tokens that the space has.

        The number is larger than the end of the last node if the tokens branch off, or end, within the next node.
        """
        path: list[RadixNode] = []
        node, n = self._roots.get(space), 0
        if node is None:
            return path, n
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
        """Return the number of leading tokens whose K and V are in host memory."""
        path, n = self.match_prefix(tokens)
        for node in path:
            if not node.on_host:
                return node.start
        node = path[-1] if path else self.root
        return n if n > node.end and node.children[int(tokens[node.end])].on_host else node.end

    def insert(self, tokens: Tokens, checkpoint: Checkpoint, space: Space = COMMON) -> RadixNode:
        """Insert a checkpoint after these tokens; replace the checkpoint that is there, if any."""
        consistent, self.consistent, self.changed = self.consistent, False, True
        path, n = self.match_prefix(tokens, space)
        node = path[-1] if path else self._root(space)
        if n > node.end:  # the tokens branch off, or end, within a child
            node = self._split(node.children[int(tokens[node.end])], n)
        if n < len(tokens):
            child = RadixNode(node, n, tokens[n:].copy())
            node.children[int(tokens[n])] = child
            self.n_nodes += 1
            node = child
        if node.checkpoint is not None:
            self._count_bytes(space.owner, -node.checkpoint.state.nbytes)
        node.checkpoint = checkpoint
        self._count_bytes(space.owner, checkpoint.state.nbytes)
        self.checkpoints[node] = None
        self.consistent = consistent
        return node

    def add_cells(self, node: RadixNode, slices: Sequence[BlockSlice]) -> None:
        """Add the K and V up to the node's end that host memory lacks, as slices of new blocks."""
        consistent, self.consistent = self.consistent, False
        for part in slices:
            self._count_bytes(part.block.owner, part.block.data.nbytes)
        for member in [node, *node.ancestors()]:
            if member.slices is None:
                member.slices = _clip(slices, member.start, member.end)
                self.n_tokens += len(member.tokens)
                for part in member.slices:
                    part.block.ref_count += 1
        self.consistent = consistent

    def free_cells(self, path: Sequence[RadixNode]) -> bool:
        """Free the K and V of a path, from its end up to a branch that has K and V, or to a checkpoint that is kept.

        Return whether any were freed.
        """
        n_tokens, self.consistent = self.n_tokens, False
        for node in reversed(path):
            if any(child.on_host for child in node.children.values()) or is_kept(node):
                break
            self._release_slices(node)
        self.consistent = True
        return self.n_tokens < n_tokens

    def cells(self, node: RadixNode, start: int) -> list[BlockSlice]:
        """Return the K and V from position `start` to the end of a node whose K and V are in host memory, in order."""
        slices: list[BlockSlice] = []
        for member in reversed([node, *node.ancestors()]):
            slices += _clip(member.slices or (), start, member.end)
        return slices

    def remove_checkpoint(self, node: RadixNode) -> None:
        """Remove a checkpoint, and the nodes, K and V that only it needed."""
        assert node.checkpoint is not None
        consistent, self.consistent, self.changed = self.consistent, False, True
        self._count_bytes(node.space.owner, -node.checkpoint.state.nbytes)
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
                    self._count_bytes(block.owner, -block.data.nbytes)
            node.slices = None

    def _split(self, node: RadixNode, n: int) -> RadixNode:
        """Split a node at position n: the tokens before n go to a new node above it. Return the new node."""
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
        """Remove a node without checkpoint and children, or merge it with its only child; then go on with its parent.

        The first node that must stay ends the walk: one with a checkpoint, or with several children.
        """
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
        if node.parent is None and not node.children and node is not self.root:
            del self._roots[node.space]

    def _merge_into_child(self, node: RadixNode) -> None:
        """Replace a node by its only child, which also gets the node's tokens, K and V."""
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


def _end(node: RadixNode) -> int:
    return node.end


def _clip(slices: Iterable[BlockSlice], start: int, end: int) -> list[BlockSlice]:
    """Return the parts of the slices that lie between two positions."""
    inside = [part for part in slices if part.start < end and part.end > start]
    return [BlockSlice(block, max(first, start), min(last, end)) for block, first, last in inside]
