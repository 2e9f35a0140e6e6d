"""Checkpoints of recurrent states: where prefill takes them, and which leave host memory when it is full."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from heapq import nsmallest

from pymtp.prefix_cache.tree import (
    COMMON,
    Bytes,
    Checkpoint,
    CheckpointReason,
    RadixNode,
    RadixTree,
    Space,
    Tokens,
    is_kept,
)

# The next turn of a chat may replace the last tokens of a prompt, such as those that open a thinking block.
TAIL_TOKENS = 8

MAX_CHECKPOINTS = 12  # per prompt

# A checkpoint without evidence that it will be used must save at least this multiple of `min_gain`.
UNPROVEN_FACTOR = 4

# The chance that a checkpoint which was never used will be used, relative to one that is known to be wanted. These
# numbers are the best of those that were tried on the traces of tests/prefix_cache/test_traces.py.
UNPROVEN_WEIGHT = 1 / 16
INITIAL_WEIGHTS = {
    CheckpointReason.BRANCH_SEEN: 1.0,
    CheckpointReason.BRANCH_EXPECTED: 1 / 4,  # a chat continues once, if at all
    CheckpointReason.NEAR_END: UNPROVEN_WEIGHT,
    CheckpointReason.PROMPT_END: UNPROVEN_WEIGHT,
    CheckpointReason.INTERVAL: UNPROVEN_WEIGHT,
    CheckpointReason.SEQUENCE_END: UNPROVEN_WEIGHT,
}
BATCH_DIVISOR = 64  # checkpoints are evicted in batches of at most 1 / 64 of all checkpoints, but at least one
MAX_COUNTED_USES = 8  # more uses do not count: a checkpoint that was popular once must not stay for ever


def plan_checkpoints(
    n_tokens: int,
    n_cached: int,
    *,
    min_gain: int,
    alignment: int,
    n_ubatch: int,
    max_checkpoints: int,
    last_checkpoint: int | None = None,
    shared_tokens: int = 0,
    branch_points: Iterable[int] = (),
) -> dict[int, CheckpointReason]:
    """Return the positions where the prefill of a prompt stops for checkpoints, in rising order, with the reasons.

    All positions except the prompt's end are multiples of `alignment`, so that stopping there changes no bits.

    n_tokens: the length of the prompt.
    n_cached: the number of its first tokens that come from the cache.
    min_gain: the fewest tokens that a checkpoint must save.
    last_checkpoint: the position of the last checkpoint within the cached tokens; None: at the end of these tokens. It
        lies earlier if the prompt continues from the state of its sequence, because prefill overwrites that state.
    shared_tokens: the number of leading tokens that the prompt shares with another text.
    branch_points: positions where later prompts are expected to branch off; the position of the prompt's end means that
        the whole prompt is expected again.
    """
    planned: dict[int, CheckpointReason] = {}
    last_checkpoint = n_cached if last_checkpoint is None else last_checkpoint

    def add(position: int, reason: CheckpointReason) -> None:
        position = min(position, n_tokens - 1)
        position -= position % alignment
        gains = position > n_cached and position - last_checkpoint >= min_gain
        if gains and all(abs(position - other) >= min_gain for other in planned):
            planned[position] = reason

    continues_text = max(n_cached, shared_tokens) >= min_gain  # the prompt begins as another text does
    expected = set(branch_points)
    branches = dict.fromkeys(expected - {n_tokens}, CheckpointReason.BRANCH_EXPECTED)
    branches[shared_tokens] = CheckpointReason.BRANCH_SEEN
    for position in sorted(branches):  # in rising order: of close branch points, the first gets the only checkpoint
        add(position, branches[position])
    # the prompt may be a turn of a chat
    if CheckpointReason.BRANCH_EXPECTED not in planned.values() and continues_text:
        add(n_tokens - TAIL_TOKENS, CheckpointReason.NEAR_END)
    end_is_useful = n_tokens in expected or continues_text
    end_is_far = n_tokens - n_cached >= UNPROVEN_FACTOR * min_gain
    if end_is_useful and end_is_far and all(n_tokens - other >= min_gain for other in planned):
        planned[n_tokens] = CheckpointReason.PROMPT_END
    interval = n_ubatch
    while interval < UNPROVEN_FACTOR * min_gain:
        interval *= 2
    # gaps double with the distance from the end, so that a text that branches off late prefills little again
    position, gap = (n_tokens - min_gain) // interval * interval, interval
    while position > 0:
        add(position, CheckpointReason.INTERVAL)
        position, gap = position - gap, 2 * gap
    by_importance = sorted(planned, key=lambda position: (planned[position], -position))
    chosen = by_importance[: max(0, min(max_checkpoints, MAX_CHECKPOINTS))]
    return {position: planned[position] for position in sorted(chosen)}


def reuse_weight(node: RadixNode) -> float:
    """Return how likely the node's checkpoint is to be used, relative to one that is known to be wanted.

    Most checkpoints are never used. As in Marconi (arXiv 2411.19379), the kind of a checkpoint forecasts whether it
    will be. Most of the used checkpoints either lie where texts branch, and are used again and again, or lie where a
    chat continued, and are used only once.
    """
    checkpoint = node.checkpoint
    assert checkpoint is not None
    if checkpoint.uses > 1 or checkpoint.reason == CheckpointReason.BRANCH_SEEN:
        return float(min(max(1, checkpoint.uses), MAX_COUNTED_USES))
    if checkpoint.uses:
        return UNPROVEN_WEIGHT / 4 if node.children else 1.0
    return INITIAL_WEIGHTS[checkpoint.reason]


class EvictionPolicy:
    """Evicts a tree's checkpoints, and the K and V before them, so that they never exceed a limit of host memory.

    The checkpoint that saves the least prefill per byte is evicted first, where old checkpoints count less
    (GreedyDual-Size: Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997) and often used ones count
    more (GreedyDual-Size-Frequency: Cherkasova, HP Labs report HPL-98-69, 1998):

        priority = clock at the last use + saved seconds / bytes * chance of being used

    The clock is the priority of the last checkpoint that was evicted or refused. So a checkpoint that is not used falls
    behind new ones, even if it saves much. The saved seconds are the prefill time from the previous checkpoint to this
    one. The bytes are the size of its state and, if no checkpoint comes after it, of the K and V that are freed with
    it: states can be freed anywhere in the tree, K and V only from its ends.

    Each owner of spaces may use the same share of the limit. For an owner within its share, checkpoints of owners
    beyond theirs are evicted first, whatever their priority; those of other owners within their shares always stay.
    Checkpoints that are kept are never evicted.
    """

    def __init__(self, tree: RadixTree, limit: int, cell_bytes: int, prefill_cost: Callable[[int, int], float]) -> None:
        """Create the policy of a tree.

        limit: the largest number of bytes of host memory.
        cell_bytes: the size of one token's K and V.
        prefill_cost: returns the time, in any unit, to prefill the tokens between two positions.
        """
        self.tree, self.limit, self._cell_bytes, self._prefill_cost = tree, limit, cell_bytes, prefill_cost
        self.clock = 0.0
        self._lowest_known = 0.0  # the lowest priority of all checkpoints; valid until the tree changes
        self.evicted = 0  # number of evicted checkpoints
        self.evicted_tokens = 0  # number of tokens whose K and V left host memory with evicted checkpoints

    def value_per_byte(self, previous: int, n: int, state_bytes: int, *, cells: int) -> float:
        """Return the prefill time that a checkpoint after n tokens saves, per byte of it.

        previous: the position of the checkpoint before.
        state_bytes: the size of its state.
        cells: the number of tokens whose K and V count as its bytes.
        """
        return self._prefill_cost(previous, n) / max(1, state_bytes + cells * self._cell_bytes)

    def priority(self, node: RadixNode) -> float:
        """Return the priority of the node's checkpoint; the checkpoint with the lowest priority is evicted first."""
        checkpoint = node.checkpoint
        assert checkpoint is not None
        # Tokens whose K and V only this checkpoint needs. K and V in a sequence count, too: they may be spilled later
        cells = 0
        if not node.children:
            top = node
            for above in node.ancestors():
                if above.checkpoint is not None or len(above.children) > 1:
                    break
                top = above
            cells = node.end - top.start
        value = self.value_per_byte(node.previous_checkpoint(), node.end, checkpoint.state.nbytes, cells=cells)
        return checkpoint.clock + reuse_weight(node) * value

    def make_room(
        self,
        need: int,
        priority: float,
        protected: Container[RadixNode | None],
        free_duplicates: Callable[[], bool] = lambda: False,
        owner: str = "",
    ) -> bool:
        """Evict checkpoints until `need` bytes are free. Return False if that is not possible.

        priority: checkpoints with a higher priority stay.
        protected: nodes whose checkpoints stay.
        free_duplicates: called before any checkpoint is evicted; frees K and V in host memory that a sequence has, too,
            and returns False if there are none.
        owner: the owner of the space that needs the bytes.
        """
        tree = self.tree
        if need > self.limit:
            return False
        while tree.nbytes + need > self.limit:
            if free_duplicates():
                continue
            all_higher = not tree.changed and self._lowest_known > priority and not self._claims(owner, need)
            candidates = [] if all_higher else self._lowest(protected, owner, need)
            if not all_higher and not candidates:
                return False
            if all_higher or candidates[0][0] > priority:
                # the clock advances as if the new checkpoint had been inserted and evicted: otherwise the checkpoints
                # in the tree would never grow old
                self.clock = max(self.clock, priority)
                return False
            for first, _, node in candidates:
                current = self.priority(node)  # changes when other checkpoints are evicted
                if first > -math.inf and current > priority:
                    break
                self._evict(node, current)
        return True

    def _lowest(
        self, protected: Container[RadixNode | None], owner: str, need: int
    ) -> list[tuple[float, int, RadixNode]]:
        """Return the next checkpoints to evict for an owner that needs bytes, in rising order of priority.

        Returns a batch, because each call computes the priorities of all checkpoints.
        """
        nodes = [node for node in self.tree.checkpoints if not is_kept(node)]
        priorities = [(self.priority(node), i, node) for i, node in enumerate(nodes)]
        self._lowest_known = min(priorities)[0] if priorities else math.inf
        self.tree.changed = False
        evictable = [entry for entry in priorities if entry[2] not in protected]
        if self.tree.owner_bytes.keys() - {owner}:
            evictable = self._fair(evictable, owner, need)
        return nsmallest(max(1, len(nodes) // BATCH_DIVISOR), evictable)

    def _share(self, owner: str) -> float:
        """Return the bytes that each owner may use while this one uses some, too."""
        return self.limit / len(self.tree.owner_bytes.keys() | {owner})

    def _claims(self, owner: str, need: int) -> bool:
        """Return whether the owner stays within its share with `need` more bytes, so that others must make way."""
        used = self.tree.owner_bytes
        return len(used.keys() - {owner}) > 0 and used.get(owner, 0) + need <= self._share(owner)

    def _fair(
        self, entries: list[tuple[float, int, RadixNode]], owner: str, need: int
    ) -> list[tuple[float, int, RadixNode]]:
        """Return those checkpoints that an owner may evict; the priority of those that must make way is -inf."""
        used, share = self.tree.owner_bytes, self._share(owner)
        beyond = [entry for entry in entries if entry[2].space.owner != owner and used[entry[2].space.owner] > share]
        if beyond and self._claims(owner, need):
            return [(-math.inf, i, node) for i, (_, _, node) in enumerate(sorted(beyond))]
        return [*beyond, *(entry for entry in entries if entry[2].space.owner == owner)]

    def _evict(self, node: RadixNode, priority: float) -> None:
        self.clock = max(self.clock, priority)
        n_tokens = self.tree.n_tokens
        self.tree.remove_checkpoint(node)
        self.evicted += 1
        self.evicted_tokens += n_tokens - self.tree.n_tokens

    def insert(
        self, tokens: Tokens, state: Bytes, reason: CheckpointReason, space: Space = COMMON, *, has_logits: bool
    ) -> RadixNode | None:
        """Insert a checkpoint after `make_room` was called for it. Return None if its state still has no room."""
        if self.tree.nbytes + state.nbytes > self.limit:
            return None
        return self.tree.insert(tokens, Checkpoint(state, reason, has_logits, self.clock), space)

    def refresh(self, node: RadixNode, *, public: bool = False, kept: bool = False) -> None:
        """Set the age of the node's checkpoint to that of a new one.

        public: let all spaces continue from it. kept: never evict it.
        """
        assert node.checkpoint is not None
        node.checkpoint.clock = self.clock
        node.checkpoint.public |= public
        node.checkpoint.kept |= kept
        self.tree.changed = True

    def touch(self, node: RadixNode) -> None:
        """Count a use of the node's checkpoint."""
        assert node.checkpoint is not None
        node.checkpoint.uses += 1
        self.refresh(node)
