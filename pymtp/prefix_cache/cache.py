"""The prefix cache: finds a prompt's longest cached prefix, plans checkpoints, and lets requests wait for others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np

from pymtp.prefix_cache.checkpoints import plan_checkpoints
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.load import StoredPrefix, import_file
from pymtp.prefix_cache.store import CacheHit, PrefixFigures, PrefixStore, SequenceContents
from pymtp.prefix_cache.tree import (
    COMMON,
    Bytes,
    CheckpointReason,
    RadixNode,
    Space,
    Tokens,
    as_tokens,
    common_prefix_length,
)

# New prompts are compared with recent ones: limits for the number of recent prompts, and for the sum of their tokens
MAX_RECENT_PROMPTS, MAX_RECENT_TOKENS = 64, 2**20
HOST_COPY_COST = 2  # the cost of copying a token's K and V to or from host memory, relative to a copy between sequences


class PrefillState:
    """A request's prompt while it is prefilled, and its sequence.

    rank: requests with a lower rank are served first.
    branch_points: positions where later prompts are expected to branch off.
    space: the prompt reuses what requests of the same space left, and public prefixes.
    n_computed: number of prompt tokens that the sequence holds.
    n_reachable: number of prompt tokens that the sequence could hold without any prefill.
    n_cached: number of prompt tokens that came from the cache, at the start of the prefill or later.
    checkpoints: the positions where prefill stops for a checkpoint, with the reasons.
    waiting: whether the request waits for another one that prefills tokens of both prompts.
    ignores_cache: whether the prompt is prefilled from its beginning, without waiting for other requests.
    max_reuse: the largest number of prompt tokens to take from the cache; all later tokens are prefilled.
    started: whether the sequence was filled with the cached tokens of the prompt, if there are any.
    """

    def __init__(
        self, tokens: Tokens, rank: tuple[int, int], branch_points: Iterable[int], seq: int, space: Space = COMMON
    ) -> None:
        self.tokens, self.rank, self.branch_points, self.seq = tokens, rank, tuple(branch_points), seq
        self.space = space
        self.n_computed = self.n_reachable = self.n_cached = 0
        self.max_reuse = len(tokens)
        self.checkpoints: dict[int, CheckpointReason] = {}
        self.started = self.waiting = self.ignores_cache = False

    @property
    def unfinished(self) -> bool:
        """Return whether tokens of the prompt are left to prefill."""
        return self.n_computed < len(self.tokens)

    @property
    def next_checkpoint(self) -> int:
        """Return the next position to stop at for a checkpoint; the prompt's end if there is none."""
        return min((n for n in self.checkpoints if n > self.n_computed), default=len(self.tokens))


class PrefixCache:
    """The prefix cache of an engine: lets prompts reuse K, V and states of earlier prompts and outputs.

    K and V and recurrent states are reused from sequences and from host memory. A recurrent state cannot be cut to a
    prefix as K and V can, so a prompt continues only from a checkpoint, or from the end of a sequence. For each request
    the engine calls `begin`; then, for each chunk of the prompt, `prepare_chunk` and `on_prefill`; then
    `on_first_token` or `skip_logits`; and at last `release`. Only one thread at a time may use a cache, but any thread
    may call `figures` at any time.

    The radix tree of prefixes is an idea of SGLang (arXiv 2312.07104). Marconi (arXiv 2411.19379) takes checkpoints of
    recurrent states only where texts branch and end.
    """

    def __init__(
        self,
        context: PrefixContext,
        cache_bytes: int,
        *,
        min_gain: int = 64,
        alignment: int = 1,
        prefill_cost: Callable[[int, int], float] = lambda start, end: float(end - start),
    ) -> None:
        """Create an empty cache for the sequences of a context.

        cache_bytes: the limit of host memory. 0: prompts continue only from the contents of sequences.
        min_gain: a checkpoint, a later jump to a longer prefix, or waiting for another request must save the prefill of
            at least this number of tokens, which takes as long as taking several checkpoints.
        alignment: a prompt may be cut into chunks at multiples of this number without changing the bits of the result.
            1: it may be cut anywhere, and generated tokens may be reused like prefilled ones.
        prefill_cost: returns the time, in any unit, to prefill the tokens between two positions of a prompt.
        """
        self._context, self.min_gain, self.alignment = context, min_gain, alignment
        self.store, self._cache_bytes = PrefixStore(context, cache_bytes, min_gain, prefill_cost), cache_bytes
        self._prefills: list[PrefillState] = []
        self._recent_prompts: deque[tuple[Space, Tokens]] = deque()
        self._n_recent_tokens = self._ticks = 0
        self._lookups = self._hits = self._cached_tokens = 0

    def figures(self) -> PrefixFigures:
        """Return a snapshot of the cache's counters."""
        store, tree, eviction = self.store, self.store.tree, self.store.eviction
        return PrefixFigures(
            nbytes=tree.nbytes,
            nodes=tree.n_nodes,
            checkpoints=len(tree.checkpoints),
            tokens=tree.n_tokens,
            lookups=self._lookups,
            hits=self._hits,
            found=self._cached_tokens,
            copied=store.copied,
            loaded=store.loaded,
            saved=store.saved,
            evicted=eviction.evicted,
            evicted_tokens=eviction.evicted_tokens,
        )

    # ── A request ───────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(
        self,
        prompt: Sequence[int] | Tokens,
        free: Sequence[int],
        rank: tuple[int, int],
        branch_points: Iterable[int] = (),
        space: Space = COMMON,
        max_reuse: int | None = None,
    ) -> PrefillState:
        """Choose one of the free sequences for a prompt, and return the prompt's prefill state.

        The chosen sequence is `PrefillState.seq`; its contents do not change yet.

        free: the sequences that no request uses.
        rank: requests with a lower rank are served first.
        branch_points: positions where later prompts are expected to branch off, such as the beginning of the last user
            message.
        space: the prompt reuses what requests of the same space left, and public prefixes.
        max_reuse: the largest number of tokens to take from the cache; None for no limit. `PrefillState.max_reuse` may
            be changed later.
        """
        tokens = as_tokens(prompt)
        max_reuse = len(tokens) if max_reuse is None else max_reuse
        self._forget_stale(free)
        hit = self.longest_match(tokens, free, space, max_reuse)
        prefill = PrefillState(tokens, rank, branch_points, hit.seq, space)
        prefill.max_reuse = max_reuse
        prefill.n_reachable = hit.n_tokens
        self._prefills.append(prefill)
        # _must_wait has a side effect: it plans a checkpoint in an earlier prompt where a later prompt will branch off
        for other in self._prefills:
            later = other.unfinished and prefill.rank < other.rank and not other.ignores_cache
            if other is prefill or later:
                other.waiting = self._must_wait(other)
        return prefill

    def prepare_chunk(self, prefill: PrefillState) -> bool:
        """Fill a prompt's sequence with the longest cached prefix. Must be called before each chunk of the prompt.

        Returns False if the request must wait, because an earlier request is prefilling tokens that both prompts share.

        Raises the context's errors, as `on_prefill` does. After an error the sequence is empty, and the caller must
        call `release` or `prefill_uncached`.
        """
        if prefill.ignores_cache:
            prefill.waiting = False
            return True
        hit = self.longest_match(prefill.tokens, [prefill.seq], prefill.space, prefill.max_reuse)
        prefill.n_reachable = max(hit.n_tokens, prefill.n_computed)
        prefill.waiting = self._must_wait(prefill)
        if not prefill.started:
            self.store.pin(prefill, hit.node)
        if prefill.waiting:
            return False
        if not prefill.started or hit.n_tokens - prefill.n_computed >= self.min_gain:
            self._continue_from(prefill, hit)
        return True

    def prefill_uncached(self, prefill: PrefillState) -> None:
        """Start the prompt again without cached tokens, after `prepare_chunk` raised an error."""
        self._cached_tokens -= prefill.n_cached
        prefill.n_computed = prefill.n_cached = 0
        prefill.ignores_cache = True
        self._continue_from(prefill, CacheHit(prefill.seq))

    def on_prefill(self, prefill: PrefillState, n: int) -> None:
        """Record that the sequence holds n tokens of the prompt, and take a checkpoint if one is planned after them.

        Must be called before anything is sampled. Requests that wait for this checkpoint can continue from it now: call
        `prepare_chunk` for these requests before the sequence gets further tokens.
        """
        contents = self.store.sequences[prefill.seq]
        prefill.n_computed = prefill.n_reachable = contents.n_tokens = n
        contents.has_state, contents.has_logits = True, not prefill.unfinished
        if n in prefill.checkpoints:
            self._take_checkpoint(prefill)

    def on_first_token(self, prefill: PrefillState) -> None:
        """Record that the first token was sampled: the sequence no longer has the state after the prompt."""
        contents = self.store.sequences[prefill.seq]
        contents.has_state = contents.has_logits = False

    def skip_logits(self, prefill: PrefillState) -> None:
        """Record that the logits after the prompt are lost: nothing is sampled, and the next decode overwrites them."""
        self.store.sequences[prefill.seq].has_logits = False

    def release(self, prefill: PrefillState, generated: Sequence[int] | None = ()) -> None:
        """Release a request's sequence, which holds the computed part of the prompt, and the generated tokens.

        generated: the generated tokens that the sequence holds; None if the sequence is empty. If `prepare_chunk` was
            not called for the request, the sequence still has its earlier contents.
        """
        self._prefills.remove(prefill)
        self.store.pin(prefill, None)
        contents = self.store.sequences[prefill.seq]
        contents.has_logits = False  # the next decode overwrites the logits
        if generated is None:
            self.store.on_cleared(prefill.seq)
        elif not len(generated):
            contents.has_state |= prefill.started
        elif self.alignment == 1:
            contents.tokens = np.append(prefill.tokens, as_tokens(generated))
            contents.n_tokens, contents.has_state = prefill.n_computed + len(generated), True
        contents.in_use = False

    def leave_room(self, nbytes: int) -> None:
        """Leave this many of the cache's bytes of host memory to other data."""
        self.store.eviction.limit = self._cache_bytes - nbytes

    def spill(self, seq: int) -> None:
        """Copy the contents of a free sequence to host memory, as far as they are worth it, before it is cleared.

        Raises the context's errors; after an error the sequence is empty.
        """
        self.store.spill(seq, 0)

    def reuse_value(self, seq: int) -> int:
        """Return the number of cached tokens lost if a free sequence is cleared; 0 if they all fit into host memory."""
        n, limit = self.store.sequences[seq].n_tokens, self.store.eviction.limit
        return 0 if limit >= self._context.state.max_bytes + n * self._context.state.cell_bytes else n

    def on_move(self, seq: int, target: int) -> None:
        """Record that the contents of a sequence were moved to another one, which was empty."""
        sequences = self.store.sequences
        sequences[target], sequences[seq] = sequences[seq], SequenceContents()
        for prefill in self._prefills:
            if prefill.seq == seq:
                prefill.seq = target

    def _forget_stale(self, free: Sequence[int]) -> None:
        """Record a free sequence as empty if its contents have changed, because a user called the context directly."""
        for seq in free:
            contents = self.store.sequences[seq]
            same_end = not contents.has_state or self._context.tokens_held(seq) == contents.n_tokens
            if contents.n_tokens and not (same_end and self._context.begins_with(contents.known_tokens, seq)):
                self.store.on_cleared(seq)

    def lost_sequences(self) -> list[int]:
        """Return the sequences in use that lost their contents when a call that copied from them failed.

        Also records free sequences that lost their contents as empty.
        """
        lost = []
        for seq, contents in enumerate(self.store.sequences):
            if self._context.tokens_held(seq) < contents.n_tokens:
                if contents.in_use:
                    lost.append(seq)
                else:
                    self.store.on_cleared(seq)
        return lost

    def recover(self) -> None:
        """Read the contents of all sequences from the context again, after an interrupted call.

        No request may be running.
        """
        self._prefills.clear()
        self._n_recent_tokens = sum(len(tokens) for _, tokens in self._recent_prompts)
        self.store.recover()

    def checkpoint_states(
        self, tokens: Sequence[int] | Tokens, positions: Iterable[int], space: Space = COMMON
    ) -> dict[int, Bytes]:
        """Return the cached states at the given positions; at the end of the tokens, only a state with logits."""
        path = self.store.tree.match_checkpoints(as_tokens(tokens), space)
        checkpoints = {node.end: node.checkpoint for node in path if node.checkpoint is not None}
        cached = {position: checkpoints[position] for position in positions if position in checkpoints}
        return {n: one.state for n, one in cached.items() if n < len(tokens) or one.has_logits}

    def import_file(self, file: StoredPrefix, *, kept: bool = False) -> None:
        """Load a prefix file into host memory. Raises InvalidRequestError if the file does not fit; see load.py."""
        import_file(self._context, self.store, file, kept=kept)

    def clear(self) -> None:
        """Free all host memory, and record all sequences as empty."""
        self.store.clear()
        self._recent_prompts.clear()
        self._n_recent_tokens = 0

    # ── Lookup ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def longest_match(
        self, tokens: Tokens, seqs: Sequence[int], space: Space = COMMON, max_reuse: int | None = None
    ) -> CacheHit:
        """Return the longest cached prefix of at most `max_reuse` tokens, and the best of the given sequences for it.

        The best sequence takes the fewest copies of K and V, including those that must first be spilled to host memory.
        Among equals it is the one whose contents have the lowest priority, then the least recently used one.
        """
        store = self.store
        max_reuse = len(tokens) if max_reuse is None else max_reuse
        common = [
            contents.common_prefix_length(tokens) if contents.space == space else 0 for contents in store.sequences
        ]
        path = store.tree.match_checkpoints(tokens, space)
        usable = (node for node in reversed(path) if node.end <= max_reuse and self._is_usable(node, len(tokens)))
        node = next(usable, None)
        n, source = node.end if node else 0, None
        for seq, contents in enumerate(store.sequences):
            # a state in one of `seqs` is better than a checkpoint at the same position, which must be loaded
            better = contents.n_tokens > n or (contents.n_tokens == n and seq in seqs)
            matches = contents.has_state and better and common[seq] == contents.n_tokens <= max_reuse
            if matches and self._may_continue(contents.n_tokens, len(tokens), contents.has_logits):
                node, n, source = None, contents.n_tokens, seq
        if node is not None and node.checkpoint is not None and node.checkpoint.public:
            # sequences of other spaces hold the same K and V of a public prefix; nothing is learned beyond its end
            common = [
                shared or min(n, contents.common_prefix_length(tokens))
                for shared, contents in zip(common, store.sequences, strict=True)
            ]
        choices = []
        for seq in seqs:
            if node is None:
                n_kept, copy_from = (n if seq == source else 0), source
            else:
                n_kept = min(common[seq], n)
                copy_from = next((other for other, m in enumerate(common) if m >= n and other != seq), None)
            n_spilled, priority = store.spill_cost(seq, n_kept) if len(seqs) > 1 else (0, 0.0)
            cost = (n - n_kept) * (HOST_COPY_COST if copy_from is None else 1) + n_spilled * HOST_COPY_COST
            hit = CacheHit(seq, n, n_kept, node, copy_from if n_kept < n else None)
            choices.append((cost, priority, store.sequences[seq].last_used, hit))
        return min(choices, key=lambda choice: choice[:3])[3]

    def _is_usable(self, node: RadixNode, n_prompt: int) -> bool:
        return node.checkpoint is not None and self._may_continue(node.end, n_prompt, node.checkpoint.has_logits)

    def _may_continue(self, n: int, n_prompt: int, has_logits: bool) -> bool:
        """Return whether a prompt of n_prompt tokens may continue from a state after n tokens."""
        return has_logits if n == n_prompt else n < n_prompt and n % self.alignment == 0

    def _continue_from(self, prefill: PrefillState, hit: CacheHit) -> None:
        tokens, n = prefill.tokens, hit.n_tokens
        # before filling the sequence, which may evict the text that shares these tokens
        shared_tokens = self._shared_tokens(tokens, prefill.space)
        self.store.pin(prefill, hit.node)
        self.store.fill_sequence(tokens, hit, prefill.space)
        self._ticks += 1
        self.store.sequences[hit.seq] = SequenceContents(
            tokens,
            n,
            has_state=True,
            has_logits=n == len(tokens),
            in_use=True,
            last_used=self._ticks,
            space=prefill.space,
            continued=max(n, shared_tokens) >= self.min_gain or len(prefill.branch_points) > 0,
        )
        if not prefill.started:
            prefill.started = True
            self._lookups += 1
            self._hits += n > 0
            self._remember_prompt(tokens, prefill.space)
        self._cached_tokens += n - prefill.n_computed
        prefill.n_cached += n - prefill.n_computed
        prefill.n_computed = n
        self._plan_checkpoints(prefill, shared_tokens)

    # ── Checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _shared_tokens(self, tokens: Tokens, space: Space) -> int:
        """Return the largest number of leading tokens that these tokens share with another known text of the space."""
        # when a prompt jumps to a longer prefix, it is already among the recent prompts itself
        others = (recent for where, recent in self._recent_prompts if where == space and recent is not tokens)
        recent_lengths = (common_prefix_length(recent, tokens) for recent in others)
        sequences = (contents for contents in self.store.sequences if contents.space == space)
        sequence_lengths = (contents.common_prefix_length(tokens) for contents in sequences)
        tree = self.store.tree
        on_path = (tree.match_prefix(tokens, space)[1], self.store.last_checkpoint(tokens, space))
        return max(chain(on_path, sequence_lengths, recent_lengths))

    def _remember_prompt(self, tokens: Tokens, space: Space) -> None:
        """Remember a prompt, so that a later branch is noticed even after the prompt's data were evicted."""
        if space.only is not None:
            return
        self._recent_prompts.append((space, tokens))
        self._n_recent_tokens += len(tokens)
        while self._n_recent_tokens > MAX_RECENT_TOKENS or len(self._recent_prompts) > MAX_RECENT_PROMPTS:
            self._n_recent_tokens -= len(self._recent_prompts.popleft()[1])

    def _plan_checkpoints(self, prefill: PrefillState, shared_tokens: int) -> None:
        limit, size = self.store.eviction.limit, self._context.state.max_bytes
        # at most half of host memory, so that the states of one prompt do not evict those of all others
        max_checkpoints = 0 if prefill.space.only is not None else limit // (2 * size) or limit // size
        prefill.checkpoints |= plan_checkpoints(
            len(prefill.tokens),
            prefill.n_computed,
            min_gain=self.min_gain,
            alignment=self.alignment,
            n_ubatch=self._context.n_ubatch,
            max_checkpoints=max_checkpoints,
            last_checkpoint=self.store.last_checkpoint(prefill.tokens[: prefill.n_computed], prefill.space),
            shared_tokens=shared_tokens,
            branch_points=prefill.branch_points,
        )

    def _take_checkpoint(self, prefill: PrefillState) -> None:
        n, reason = prefill.n_computed, prefill.checkpoints[prefill.n_computed]
        node = self.store.take_checkpoint(prefill.seq, prefill.tokens[:n], reason, has_logits=True)
        if node is None:
            return
        for other in self._prefills:
            waits = other.waiting and not other.started and other.space == prefill.space
            shares = waits and common_prefix_length(prefill.tokens, other.tokens) >= n
            if shares and self._is_usable(node, len(other.tokens)):
                # otherwise the checkpoint might be evicted before the other request continues from it
                self.store.pin(other, node)

    # ── Waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _must_wait(self, prefill: PrefillState) -> bool:
        """Return whether a request must wait for an earlier one, which will prefill tokens that both share.

        Also plans a checkpoint of the earlier request, at the position where this one will continue. The first request
        never waits, so no request waits for ever, even if others fail or are cancelled.
        """
        best, position = None, prefill.n_reachable
        for other in self._prefills:
            if other.rank < prefill.rank and other.unfinished and other.space == prefill.space:
                n = min(self._usable_prefix(other.tokens, prefill.tokens), prefill.max_reuse)
                pays = n - prefill.n_reachable >= self.min_gain
                if not prefill.started:  # even a few tokens pay if the other request stops there anyway
                    pays |= n in other.checkpoints or n == len(prefill.tokens)
                if n > max(position, other.n_computed) and pays:
                    best, position = other, n
        if best is not None:
            best.checkpoints.setdefault(position, CheckpointReason.BRANCH_SEEN)
        return best is not None

    def _usable_prefix(self, first: Tokens, second: Tokens) -> int:
        """Return the number of common tokens after which the second prompt can continue from the first one."""
        n = common_prefix_length(first, second)
        if n == len(first) == len(second):
            return n
        n = min(n, len(second) - 1)
        return n - n % self.alignment
