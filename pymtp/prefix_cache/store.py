"""The two tiers of the prefix cache: the sequences of a context, and host memory."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from pymtp.errors import NativeError, PymtpError
from pymtp.prefix_cache.checkpoints import INITIAL_WEIGHTS, UNPROVEN_WEIGHT, EvictionPolicy, reuse_weight
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.tree import (
    COMMON,
    BlockSlice,
    Bytes,
    CheckpointReason,
    KvBlock,
    RadixNode,
    RadixTree,
    Space,
    Tokens,
    as_tokens,
    common_prefix_length,
)

BLOCK_TOKENS = 256  # tokens per block of K and V, which are saved and freed together
NO_TOKENS = as_tokens([])


class SequenceContents:
    """The known contents of a sequence: it has at least the K and V of the first n_tokens of `tokens`.

    has_state: whether the sequence also has the state after these n_tokens.
    has_logits: whether that state includes the logits.
    in_use: whether a request prefills or decodes in the sequence.
    last_used: the tick at which a request last took the sequence.
    space: only prompts of this space may reuse the contents, apart from public prefixes.
    continued: whether another text is known, or expected, to begin with the same tokens.
    """

    __slots__ = ("continued", "has_logits", "has_state", "in_use", "last_used", "n_tokens", "space", "tokens")

    def __init__(
        self,
        tokens: Tokens = NO_TOKENS,
        n_tokens: int = 0,
        *,
        has_state: bool = False,
        has_logits: bool = False,
        in_use: bool = False,
        last_used: int = 0,
        space: Space = COMMON,
        continued: bool = False,
    ) -> None:
        self.tokens, self.n_tokens, self.has_state, self.has_logits = tokens, n_tokens, has_state, has_logits
        self.in_use, self.last_used, self.space, self.continued = in_use, last_used, space, continued

    @property
    def known_tokens(self) -> Tokens:
        """Return the tokens whose K and V the sequence is known to hold."""
        return self.tokens[: self.n_tokens]

    def common_prefix_length(self, tokens: Tokens) -> int:
        """Return the number of leading tokens that `tokens` and the sequence have in common."""
        return common_prefix_length(self.known_tokens, tokens)


@dataclass(frozen=True)
class CacheHit:
    """A cached prefix that a prompt can continue from.

    seq: the sequence that is filled with the prefix.
    n_tokens: the length of the prefix; 0 if nothing is cached.
    n_kept: number of tokens of the prefix whose K and V are in the sequence already.
    node: the tree node with the checkpoint; None if the state is taken from a sequence, or nothing is cached.
    source: the sequence to copy the missing K and V from; None: they are loaded from host memory.
    """

    seq: int
    n_tokens: int = 0
    n_kept: int = 0
    node: RadixNode | None = None
    source: int | None = None


@dataclass(frozen=True)
class PrefixFigures:
    """Counters of the prefix cache.

    nbytes: bytes of host memory in use.
    nodes, checkpoints: number of nodes and of checkpoints in the radix tree.
    tokens: number of tokens with K and V in host memory.
    lookups: number of prompts whose prefill began.
    hits: number of prompts that found cached tokens.
    found: number of cached tokens that prompts found.
    copied: number of tokens whose K and V were copied from one sequence to another.
    loaded, saved: number of tokens whose K and V were copied from host memory, and to host memory.
    evicted: number of evicted checkpoints.
    evicted_tokens: number of tokens whose K and V left host memory with evicted checkpoints.
    """

    nbytes: int = 0
    nodes: int = 0
    checkpoints: int = 0
    tokens: int = 0
    lookups: int = 0
    hits: int = 0
    found: int = 0
    copied: int = 0
    loaded: int = 0
    saved: int = 0
    evicted: int = 0
    evicted_tokens: int = 0


class PrefixStore:
    """Two tiers: the sequences of a context, and host memory up to a limit.

    The state of a checkpoint is in host memory from the moment that it is taken. The K and V before it stay where they
    are, in a sequence. They are spilled to host memory when the sequence is needed for another text, if they are worth
    their bytes. So a conversation that continues in its sequence needs host memory for states only. K and V that were
    loaded from host memory stay there, too, until their bytes are needed. A checkpoint whose K and V are nowhere is
    removed.
    """

    def __init__(
        self, context: PrefixContext, cache_bytes: int, min_gain: int, prefill_cost: Callable[[int, int], float]
    ) -> None:
        """Create an empty store.

        cache_bytes: the limit of host memory.
        min_gain: the fewest tokens that a checkpoint at the end of a sequence must save.
        prefill_cost: returns the time, in any unit, to prefill the tokens between two positions.
        """
        self._context, self._min_gain = context, min_gain
        self.tree = RadixTree()
        self.eviction = EvictionPolicy(self.tree, cache_bytes, context.state.cell_bytes, prefill_cost)
        self._spilling: int | None = None  # the sequence that is being spilled
        self.sequences = [SequenceContents() for _ in range(context.n_seq_max)]
        self.pins: dict[object, RadixNode] = {}  # the checkpoints that requests start from, not to be evicted
        self.copied = self.loaded = self.saved = 0  # numbers of tokens; see PrefixFigures

    @contextmanager
    def _clear_on_error(self, seq: int) -> Iterator[None]:
        """Clear the sequence if the block raises an Exception. After a KeyboardInterrupt the engine calls `recover`."""
        try:
            yield
        except Exception:
            with suppress(PymtpError):  # the context may be closed
                self._context.clear(seq)
            self.on_cleared(seq)
            raise

    def on_cleared(self, seq: int) -> None:
        """Record that the sequence is empty, and remove the checkpoints whose K and V only it had."""
        nodes = self._checkpoints_only_in(seq, 0)
        self.sequences[seq] = SequenceContents()
        for node in nodes:
            self._remove(node)

    def clear(self) -> None:
        """Drop the tree, and record all sequences as empty."""
        self.pins.clear()
        self.tree = self.eviction.tree = RadixTree()
        self.sequences = [SequenceContents() for _ in self.sequences]

    def recover(self) -> None:
        """Read the contents of all sequences from the context again, after an interrupted call.

        No request may be running.
        """
        self.pins.clear()
        if not self.tree.consistent:
            self.tree = self.eviction.tree = RadixTree()
        in_sequences: set[RadixNode] = set()
        for seq in range(len(self.sequences)):
            before, self.sequences[seq] = self.sequences[seq], SequenceContents()
            with suppress(PymtpError):  # the context may be closed
                tokens = as_tokens(self._context.tokens(seq))
                self.sequences[seq] = SequenceContents(
                    tokens, len(tokens), has_state=len(tokens) > 0, continued=before.continued, space=before.space
                )
                in_sequences.update(self.tree.match_checkpoints(tokens, before.space))
        for node in list(self.tree.checkpoints):
            if not node.on_host and node not in in_sequences:
                self.tree.remove_checkpoint(node)

    def fill_sequence(self, tokens: Tokens, hit: CacheHit, space: Space) -> None:
        """Fill the sequence of a cache hit with the tokens of the hit, from this space, and the state after them.

        Raises the context's errors; after an error the sequence is empty.
        """
        context, seq, n = self._context, hit.seq, hit.n_tokens
        with self._clear_on_error(seq):
            self.spill(seq, hit.n_kept)
            self.sequences[seq].space = space  # before the contents change: `recover` may read them at any time
            if hit.node is not None:
                self._load_checkpoint(tokens, hit, hit.node)
            elif hit.n_kept < n or not n:
                context.clear(seq)
                if hit.source is not None:
                    context.copy(hit.source, seq)
                    self.copied += n

    def _load_checkpoint(self, tokens: Tokens, hit: CacheHit, node: RadixNode) -> None:
        context, seq, n, n_kept = self._context, hit.seq, hit.n_tokens, hit.n_kept
        assert node.checkpoint is not None
        self.eviction.touch(node)
        context.state.keep_cells(n_kept, seq)
        if hit.source is not None:
            context.state.copy_cells(hit.source, seq, n_kept, n - n_kept)
            self.copied += n - n_kept
        elif n_kept < n:
            context.state.load_cells(seq, n_kept, [part.cells for part in self.tree.cells(node, n_kept)])
            self.loaded += n - n_kept
        context.state.load(seq, tokens[:n].tolist(), node.checkpoint.state)

    # ── Checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def take_checkpoint(
        self,
        seq: int,
        tokens: Tokens,
        reason: CheckpointReason,
        *,
        has_logits: bool,
        protected: Iterable[RadixNode] = (),
    ) -> RadixNode | None:
        """Take a checkpoint of a sequence that holds these tokens.

        Returns None if there is one already, or no room, or if the sequence's space keeps nothing.

        protected: nodes whose checkpoints must not be evicted for the new one.
        """
        space = self.sequences[seq].space
        n, previous, size = len(tokens), self.last_checkpoint(tokens, space), self._context.state.max_bytes
        if previous == n or space.only is not None:
            return None
        value = self.eviction.value_per_byte(previous, n, size, cells=n - previous)
        priority = self.eviction.clock + INITIAL_WEIGHTS[reason] * value
        if not self.make_room(size, priority, {*self.pins.values(), *protected}, space.owner):
            return None
        state = self._try_save(seq, partial(self._context.state.save, seq))
        return None if state is None else self.eviction.insert(tokens, state, reason, space, has_logits=has_logits)

    def _try_save(self, seq: int, save: Callable[[], Bytes]) -> Bytes | None:
        """Call a method that saves data of a sequence. Return None if it fails.

        Raises the method's error if the sequence has lost its contents.
        """
        try:
            return save()
        except (NativeError, MemoryError):
            if self._context.tokens_held(seq) < self.sequences[seq].n_tokens:
                raise
            return None

    def last_checkpoint(self, tokens: Tokens, space: Space = COMMON) -> int:
        """Return the position of the last checkpoint within these tokens of a space; 0 if there is none."""
        nodes = self.tree.match_checkpoints(tokens, space)
        return nodes[-1].end if nodes else 0

    def pin(self, prefill: object, node: RadixNode | None) -> None:
        """Protect the checkpoint that a request starts from, instead of its earlier one. None: protect none for it."""
        self.pins.pop(prefill, None)
        if node is not None:
            self.pins[prefill] = node

    def _remove(self, node: RadixNode) -> None:
        if node.checkpoint is not None:
            self.tree.remove_checkpoint(node)
            self.pins = {prefill: pinned for prefill, pinned in self.pins.items() if pinned is not node}

    # ── Spilling: from sequences to host memory ─────────────────────────────────────────────────────────────────────

    def _checkpoints_only_in(self, seq: int, n_kept: int) -> list[RadixNode]:
        """Return, in rising order, the checkpoints behind token n_kept for which no other sequence has the K and V."""
        contents = self.sequences[seq]
        if contents.n_tokens <= n_kept:
            return []
        path = self.tree.match_checkpoints(contents.known_tokens, contents.space)
        nodes = [node for node in path if node.end > n_kept and not node.on_host]
        for other in self.sequences:
            if not nodes:
                break
            last = nodes[0].end - 1
            # comparing one token is fast, and rules out most of many sequences
            if other is not contents and other.n_tokens > last and other.tokens[last] == contents.tokens[last]:
                n = other.common_prefix_length(contents.known_tokens)
                nodes = [node for node in nodes if node.end > n or not _may_copy(other, node)]
        return nodes

    def _end_to_save(self, seq: int, n_kept: int) -> int:
        """Return the end of a sequence if a checkpoint there is worth it, else 0.

        It is if the text likely continues later, and has no other checkpoint near its end.
        """
        contents = self.sequences[seq]
        if not contents.continued or not contents.has_state or contents.in_use or contents.n_tokens <= n_kept:
            return 0
        gain = contents.n_tokens - self.last_checkpoint(contents.known_tokens, contents.space)
        return contents.n_tokens if gain > self._min_gain else 0

    def spill_cost(self, seq: int, n_kept: int) -> tuple[int, float]:
        """Return the cost of cutting a sequence down to n_kept tokens.

        The cost is a pair: the number of tokens to spill for checkpoints that will likely be used, and the highest
        priority of the checkpoints whose K and V only this sequence has.
        """
        nodes = self._checkpoints_only_in(seq, n_kept)
        last_wanted = next((node for node in reversed(nodes) if reuse_weight(node) > UNPROVEN_WEIGHT), None)
        n = 0
        if last_wanted is not None:
            on_host = next((above.end for above in last_wanted.ancestors() if above.on_host), 0)
            n = last_wanted.end - max(n_kept, on_host)
        return n, max(map(self.eviction.priority, nodes), default=0.0)

    def spill(self, seq: int, n_kept: int) -> None:
        """Copy a sequence that is about to keep only n_kept tokens to host memory, as far as that is worth the bytes.

        Raises the context's errors; after an error the sequence is empty.
        """
        self._spilling = seq
        try:
            with self._clear_on_error(seq):
                self._spill(seq, n_kept)
        finally:
            self._spilling = None
        contents = self.sequences[seq]
        if contents.n_tokens > n_kept:
            contents.n_tokens, contents.has_state, contents.has_logits = n_kept, False, False

    def make_room(self, need: int, priority: float, protected: Container[RadixNode | None], owner: str = "") -> bool:
        """Call `EvictionPolicy.make_room`, so that K and V that sequences have, too, are freed before checkpoints."""
        # the policy keeps no reference to the store: without a reference cycle, memory is freed at once
        return self.eviction.make_room(need, priority, protected, self._free_duplicates, owner)

    def _free_duplicates(self) -> bool:
        """Free K and V in host memory that a sequence has, too. Return False if there are none."""
        return any(
            self.tree.free_cells(self.tree.match_prefix(contents.known_tokens, contents.space)[0])
            for seq, contents in enumerate(self.sequences)
            if seq != self._spilling
        )

    def _spill(self, seq: int, n_kept: int) -> None:
        contents, nodes = self.sequences[seq], self._checkpoints_only_in(seq, n_kept)
        if end := self._end_to_save(seq, n_kept):
            tokens, reason = contents.tokens[:end], CheckpointReason.SEQUENCE_END
            node = self.take_checkpoint(seq, tokens, reason, has_logits=contents.has_logits, protected=nodes)
            if node is not None and not node.on_host:
                nodes.append(node)
        for node in nodes:
            if not self._copy_to_host(seq, node, {*self.pins.values(), *nodes}):
                self._remove(node)
                self.eviction.evicted += 1

    def _copy_to_host(self, seq: int, node: RadixNode, protected: Container[RadixNode]) -> bool:
        """Copy the K and V before a checkpoint to host memory. Return False if they are not worth it, or on failure."""
        if node.on_host:  # its K and V were copied together with another branch
            return True
        assert node.checkpoint is not None
        start = node.end
        # making room may evict K and V before `start`: then there is more to copy
        while start != (on_host := next((above.end for above in node.ancestors() if above.on_host), 0)):
            start = on_host
            need, size = (node.end - start) * self._context.state.cell_bytes, node.checkpoint.state.nbytes
            value = self.eviction.value_per_byte(node.previous_checkpoint(), node.end, size, cells=node.end - start)
            priority = node.checkpoint.clock + reuse_weight(node) * value
            if not self.make_room(need, priority, protected, node.space.owner):
                return False
        slices = []
        for i in range(start // BLOCK_TOKENS, -(-node.end // BLOCK_TOKENS)):
            first, last = max(i * BLOCK_TOKENS, start), min((i + 1) * BLOCK_TOKENS, node.end)
            cells = self._try_save(seq, partial(self._context.state.save_cells, seq, first, last - first))
            if cells is None:
                return False
            slices.append(BlockSlice(KvBlock(first, cells, node.space.owner), first, last))
        if sum(part.block.data.nbytes for part in slices) > need:
            return False
        self.tree.add_cells(node, slices)
        self.saved += node.end - start
        return True


def _may_copy(contents: SequenceContents, node: RadixNode) -> bool:
    """Return whether the K and V before a node's checkpoint may be copied from a sequence that holds its tokens."""
    return contents.space == node.space or (node.checkpoint is not None and node.checkpoint.public)
