"""What goes first where host memory is full."""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import nsmallest

from pymtp.prefix_cache.checkpoints import Why
from pymtp.prefix_cache.tree import Bytes, Checkpoint, Node, PrefixTree, Tokens

# How likely a checkpoint is used that was not used yet, of one that is known to be wanted: found by trying, see
# test_prefix_traces.
UNLIKELY = 1 / 16
FIRST = {
    Why.PARTING: 1.0,
    Why.MARK: 1 / 4,  # a chat goes on once, if at all
    Why.TAIL: UNLIKELY,
    Why.END: UNLIKELY,
    Why.STEP: UNLIKELY,
    Why.TEXT: UNLIKELY,
}
PART = 64  # of all checkpoints, what goes at a time
MOST_USES = 8  # that count: what was wanted once does not stay for ever


def likely(node: Node) -> float:
    """How likely the node's checkpoint is used, of one that is known to be wanted.

    Most checkpoints are never used: Marconi (arXiv 2411.19379) forecasts by kinds which are. Of those that are used,
    most are where texts part, and are used again and again, or where a chat went on, and are never used again.
    """
    checkpoint = node.checkpoint
    assert checkpoint is not None
    if checkpoint.uses > 1 or checkpoint.why == Why.PARTING:
        return float(min(max(1, checkpoint.uses), MOST_USES))
    if checkpoint.uses:
        return UNLIKELY / 4 if node.children else 1.0
    return FIRST[checkpoint.why]


class Budget:
    """Bytes that checkpoints, and the K and V before them, take in a tree: never more than a limit.

    What goes first is the checkpoint that saves the least reading per byte, age counted in: GreedyDual-Size (Cao and
    Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997), with uses counted in (GreedyDual-Size-Frequency:
    Cherkasova, HP Labs report HPL-98-69, 1998). A checkpoint's priority is the clock at its last use, plus the seconds
    that it saves, divided by its bytes, times how likely they are saved; the clock is the priority of the last one that
    went, or was turned away. So what is not used falls behind what comes, however dear it is. The seconds are those of
    reading on from the checkpoint before it. The bytes are those of its states, and where no checkpoint comes after it,
    of the K and V that go with it: these go from the ends of the tree, states from anywhere.
    """

    def __init__(self, tree: PrefixTree, limit: int, cell_bytes: int, reading: Callable[[int, int], float]) -> None:
        """cell_bytes: K and V of a token. reading: seconds of reading the tokens between two places."""
        self.tree, self.limit, self._cell_bytes, self._reading = tree, limit, cell_bytes, reading
        self.clock = 0.0
        self._least = 0.0  # the lowest priority, unless the tree changed
        self.evicted = 0  # checkpoints
        self.evicted_tokens = 0  # whose K and V went along

    def worth(self, before: int, n: int, nbytes: int, *, cells: int) -> float:
        """Seconds per byte, of a checkpoint at n after one at `before`, with K and V of so many tokens."""
        return self._reading(before, n) / max(1, nbytes + cells * self._cell_bytes)

    def priority(self, node: Node) -> float:
        """Of the node's checkpoint: the lowest goes first."""
        checkpoint = node.checkpoint
        assert checkpoint is not None
        cells = 0  # the K and V that only it needs, wherever they are now: they are to be in host memory one day
        if not node.children:
            top = node
            for above in node.up():
                if above.checkpoint is not None or len(above.children) > 1:
                    break
                top = above
            cells = node.end - top.start
        worth = self.worth(node.before(), node.end, checkpoint.state.nbytes, cells=cells)
        return checkpoint.age + likely(node) * worth

    def room(
        self, need: int, priority: float, keep: Container[Node | None], spare: Callable[[], bool] = lambda: False
    ) -> bool:
        """Makes room for so many bytes, at the cost of what has no higher priority; whether there is. keep: nodes whose
        checkpoints stay. spare: lets go of K and V that are elsewhere, too, before any checkpoint goes; False where
        there are none."""
        tree = self.tree
        if need > self.limit:
            return False
        while tree.nbytes + need > self.limit:
            if spare():
                continue
            dear = not tree.changed and self._least > priority
            lowest = [] if dear else self._lowest(keep)
            if not dear and not lowest:
                return False
            if dear or lowest[0][0] > priority:  # as if it had come and gone: else what is there would never grow old
                self.clock = max(self.clock, priority)
                return False
            for _, _, node in lowest:
                found = self.priority(node)  # perhaps another one, since others went
                if found > priority:
                    break
                self._evict(node, found)
        return True

    def _lowest(self, keep: Container[Node | None]) -> list[tuple[float, int, Node]]:
        """What goes next, rising: of many, some at a time, for all are looked at."""
        nodes = self.tree.checkpoints
        priorities = [(self.priority(node), i, node) for i, node in enumerate(nodes)]
        self._least, self.tree.changed = min(priorities)[0] if priorities else 0.0, False
        return nsmallest(max(1, len(nodes) // PART), (one for one in priorities if one[2] not in keep))

    def _evict(self, node: Node, priority: float) -> None:
        self.clock = max(self.clock, priority)
        n_tokens = self.tree.n_tokens
        self.tree.drop(node)
        self.evicted += 1
        self.evicted_tokens += n_tokens - self.tree.n_tokens

    def put(self, tokens: Tokens, state: Bytes, why: Why, *, logits: bool) -> Node | None:
        """A checkpoint that there is room for; None where it turned out larger than was made room for."""
        if self.tree.nbytes + state.nbytes > self.limit:
            return None
        return self.tree.put(tokens, Checkpoint(state, why, logits, self.clock))

    def renew(self, node: Node) -> None:
        """Its checkpoint is wanted as one that is new."""
        assert node.checkpoint is not None
        node.checkpoint.age = self.clock
        self.tree.changed = True

    def touch(self, node: Node) -> None:
        """Its checkpoint was used."""
        assert node.checkpoint is not None
        node.checkpoint.uses += 1
        self.renew(node)
