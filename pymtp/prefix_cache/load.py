"""Loads a prefix file into the radix tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from pymtp.errors import InvalidRequestError
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.store import BLOCK_TOKENS, PrefixStore
from pymtp.prefix_cache.tree import BlockSlice, Bytes, CheckpointReason, KvBlock, RadixNode, as_tokens, is_kept


class StoredPrefix(Protocol):
    """The contents of a prefix file, such as a `PrefixFile`: tokens, their K and V, and states.

    checkpoints: the positions of the states, in rising order. The last position is the end of the tokens, and the state
        there has logits.
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
        """Return an InvalidRequestError with this message after the path of the file."""


def _has_state(node: RadixNode, n: int) -> bool:
    """Return whether the tree has a node's state already, so that it need not be loaded from a file of n tokens.

    The state at the end of the file must have logits.
    """
    return node.checkpoint is not None and (node.end < n or node.checkpoint.has_logits)


def import_file(context: PrefixContext, store: PrefixStore, file: StoredPrefix, *, kept: bool = False) -> None:
    """Load the missing parts of a prefix file into host memory, and evict other prefixes for them if necessary.

    kept: never evict the file's prefix again.

    Raises InvalidRequestError if the file does not fit into the limit of host memory (the message says how many bytes
    it needs), or if the context cannot load its K, V or states. After an error the tree has nothing of the file that it
    did not have before.
    """
    tree, eviction, tokens = store.tree, store.eviction, as_tokens(file.tokens)
    n = len(tokens)
    if file.cell_bytes != context.state.cell_bytes:
        raise file.error(
            f"has {file.cell_bytes} bytes of K and V per token, but this context has {context.state.cell_bytes}"
        )
    # nodes, not states: a reference to a state would keep it in memory after its eviction
    nodes = {node.end: node for node in tree.match_prefix(tokens)[0] if _has_state(node, n)}
    missing = [position for position in file.checkpoints if position not in nodes]
    protected = [nodes[position] for position in file.checkpoints if position in nodes]
    missing_bytes = sum(map(file.state_bytes, missing))
    start = -1
    # repeated, because making room may evict K and V of this prefix, which must be loaded then, too
    while start != (on_host := tree.tokens_on_host(tokens)):
        start = on_host
        need = missing_bytes + (n - start) * context.state.cell_bytes
        if not store.make_room(need, math.inf, {*store.pins.values(), *protected}):
            used = f", of which {tree.nbytes:,} are in use" if need <= eviction.limit else ""
            raise file.error(f"needs {need:,} bytes of host memory: cache_bytes is {eviction.limit:,}{used}")
    states = [(position, file.state(position)) for position in missing]
    for position, state in states:
        try:
            has_logits = context.state.check(file.tokens[:position], state)
        except InvalidRequestError as error:
            raise file.error(f"does not fit: {error}") from error
        if position == n and not has_logits:
            raise file.error("has no logits of its last token")
    slices = []
    for i in range(start // BLOCK_TOKENS, -(-n // BLOCK_TOKENS)) if start < n else ():
        first, last = max(i * BLOCK_TOKENS, start), min((i + 1) * BLOCK_TOKENS, n)
        slices.append(BlockSlice(KvBlock(first, file.cells(first, last - first)), first, last))
    # the whole file was read before the tree changes: nothing can fail from here on
    kept_ends = {node.end for node in tree.match_prefix(tokens)[0] if is_kept(node)}
    for position, state in states:
        # the strongest reason, as a user wants this state, also after its first use
        node = eviction.insert(tokens[:position], state, CheckpointReason.BRANCH_SEEN, has_logits=position == n)
        assert node is not None
        nodes[position] = node
    if slices:
        tree.add_cells(nodes[n], slices)
    for position in file.checkpoints:
        eviction.refresh(nodes[position], public=True, kept=kept or position in kept_ends)
