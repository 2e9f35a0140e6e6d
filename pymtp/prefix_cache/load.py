"""Loads a prefix file into the radix tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from pymtp.errors import InvalidRequestError
from pymtp.prefix_cache.checkpoints import CheckpointReason
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.store import BLOCK_TOKENS, PrefixStore
from pymtp.prefix_cache.tree import BlockSlice, Bytes, KvBlock, RadixNode, as_tokens


class StoredPrefix(Protocol):
    """The contents of a prefix file: tokens, their K and V, and states; `PrefixFile` is one.

    checkpoints: the positions of its states, rising; the last one is the end, and that state has logits.
    """

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def checkpoints(self) -> Sequence[int]: ...
    @property
    def cell_bytes(self) -> int: ...
    def state_bytes(self, position: int) -> int: ...
    def state(self, position: int) -> Bytes: ...
    def cells(self, first: int, n: int) -> Bytes: ...
    def error(self, message: str) -> InvalidRequestError:
        """Return an error whose message begins with the file's name."""


def _has_state(node: RadixNode, n: int) -> bool:
    """Tell whether the node makes a state of a file with n tokens unnecessary: the one at the end needs logits."""
    return node.checkpoint is not None and (node.end < n or node.checkpoint.has_logits)


def import_file(context: PrefixContext, store: PrefixStore, file: StoredPrefix) -> None:
    """Load a prefix file into host memory, and evict any others for it; read only the missing parts.

    Raises InvalidRequestError if it does not fit into the limit, with the bytes that it needs, and for K, V or states
    that the context cannot load. The tree has no more than before then.
    """
    tree, eviction, tokens = store.tree, store.eviction, as_tokens(file.tokens)
    n = len(tokens)
    if file.cell_bytes != context.cell_bytes:
        raise file.error(f"has K and V of {file.cell_bytes} bytes a token, here it is {context.cell_bytes}")
    # nodes, not states: an evicted state must be freed at once
    nodes = {node.end: node for node in tree.match_prefix(tokens)[0] if _has_state(node, n)}
    missing = [position for position in file.checkpoints if position not in nodes]
    protected = [nodes[position] for position in file.checkpoints if position in nodes]
    missing_bytes = sum(map(file.state_bytes, missing))
    start = -1
    while start != (on_host := tree.tokens_on_host(tokens)):  # making room may evict K and V: then more is missing
        start = on_host
        need = missing_bytes + (n - start) * context.cell_bytes
        if not store.make_room(need, math.inf, {*store.pins.values(), *protected}):
            used = f", of which {tree.nbytes:,} are in use" if need <= eviction.limit else ""
            raise file.error(f"needs {need:,} bytes of host memory: cache_bytes is {eviction.limit:,}{used}")
    states = [(position, file.state(position)) for position in missing]
    for position, state in states:
        try:
            has_logits = context.check_state(file.tokens[:position], state)
        except InvalidRequestError as error:
            raise file.error(f"does not fit: {error}") from error
        if position == n and not has_logits:
            raise file.error("has no logits of its last token")
    slices = []
    for i in range(start // BLOCK_TOKENS, -(-n // BLOCK_TOKENS)) if start < n else ():
        first, last = max(i * BLOCK_TOKENS, start), min((i + 1) * BLOCK_TOKENS, n)
        slices.append(BlockSlice(KvBlock(first, file.cells(first, last - first)), first, last))
    # the whole file is read: from here on nothing fails, so the tree gets all of it
    for position, state in states:
        # BRANCH_SEEN: a loaded state is wanted, and still is after its first use
        node = eviction.insert(tokens[:position], state, CheckpointReason.BRANCH_SEEN, has_logits=position == n)
        assert node is not None
        nodes[position] = node
    if slices:
        tree.add_cells(nodes[n], slices)
    for position in file.checkpoints:
        eviction.refresh(nodes[position])
