"""Prefixes from files, in the tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from pymtp.errors import InvalidRequestError
from pymtp.prefix_cache.checkpoints import Why
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.store import BLOCK, PrefixStore
from pymtp.prefix_cache.tree import Block, Bytes, Node, Part, as_tokens


class StoredPrefix(Protocol):
    """What a file has: tokens; K and V, rows of so many bytes; states after as many tokens as `places` says, the last
    after all of them, with their logits. See PrefixFile."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def places(self) -> Sequence[int]: ...
    @property
    def cell_bytes(self) -> int: ...
    def state_bytes(self, place: int) -> int: ...
    def state(self, place: int) -> Bytes: ...
    def cells(self, first: int, n: int) -> Bytes: ...
    def refused(self, why: str) -> InvalidRequestError:
        """An error that names the file."""


def _serves(node: Node, n: int) -> bool:
    """Whether it has a state that need not come from a file of n tokens, at whose end there are logits."""
    return node.checkpoint is not None and (node.end < n or node.checkpoint.logits)


def adopt(context: PrefixContext, store: PrefixStore, file: StoredPrefix) -> None:
    """Brings what a file has to host memory, at the cost of whatever is there. What is there already is not read.

    Raises InvalidRequestError where it does not fit into the budget, with the bytes that it needs, and for what the
    context cannot load: the tree has what it had then, or less.
    """
    tree, budget, tokens = store.tree, store.budget, as_tokens(file.tokens)
    n = len(tokens)
    if file.cell_bytes != context.cell_bytes:
        raise file.refused(f"has K and V of {file.cell_bytes} bytes a token, here it is {context.cell_bytes}")
    # nodes only: a state that goes must not be held here
    there = {node.end: node for node in tree.walk(tokens)[0] if _serves(node, n)}
    missing = [place for place in file.places if place not in there]
    kept = [there[place] for place in file.places if place in there]
    states = sum(map(file.state_bytes, missing))
    start = -1
    while start != (covered := tree.covered(tokens)):
        start = covered  # what was covered may go where room is made
        need = states + (n - start) * context.cell_bytes
        if not store.room(need, math.inf, {*store.pins.values(), *kept}):
            used = f", of which {tree.nbytes:,} are in use" if need <= budget.limit else ""
            raise file.refused(f"needs {need:,} bytes of host memory: cache_bytes is {budget.limit:,}{used}")
    found = [(place, file.state(place)) for place in missing]
    for place, state in found:
        try:
            logits = context.check_state(file.tokens[:place], state)
        except InvalidRequestError as error:
            raise file.refused(f"does not fit: {error}") from error
        if place == n and not logits:
            raise file.refused("has no logits of its last token")
    parts = []
    for i in range(start // BLOCK, -(-n // BLOCK)) if start < n else ():
        first, last = max(i * BLOCK, start), min((i + 1) * BLOCK, n)
        parts.append(Part(Block(first, file.cells(first, last - first)), first, last))
    # all is read: the tree is changed in one go
    for place, state in found:
        # as where texts were seen to part: it is wanted, and still is after its first use
        node = budget.put(tokens[:place], state, Why.PARTING, logits=place == n)
        assert node is not None
        there[place] = node
    if parts:
        tree.cover(there[n], parts)
    for place in file.places:
        budget.renew(there[place])
