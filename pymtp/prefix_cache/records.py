"""Records of the prefix cache: a prompt in prefill, the contents of a sequence, a cache hit, and the figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pymtp.prefix_cache.checkpoints import CheckpointReason
from pymtp.prefix_cache.tree import RadixNode, Tokens, as_tokens, common_prefix_length

NO_TOKENS = as_tokens([])


class PrefillState:
    """A request's prompt while it is prefilled, and its sequence.

    rank: requests with a lower rank come first.
    branch_points: positions where later prompts are expected to branch off.
    group: requests reuse K and V and states in sequences only from requests of the same group.
    n_computed: tokens of the prompt that the sequence holds.
    n_reachable: tokens that it could hold at once, without prefill.
    n_cached: tokens that came from the cache, when prefill began or later.
    checkpoints: the positions where prefill is to stop for a checkpoint, and the reasons.
    waiting: whether it waits for another request that prefills what both share.
    ignores_cache: whether it is prefilled from the beginning, and waits for no other request.
    max_reuse: the most tokens that it may take from the cache; tokens after these it prefills itself.
    started: whether its sequence was prepared: the cached tokens are there.
    """

    def __init__(
        self, tokens: Tokens, rank: tuple[int, int], branch_points: Iterable[int], seq: int, group: object = None
    ) -> None:
        self.tokens, self.rank, self.branch_points, self.seq = tokens, rank, tuple(branch_points), seq
        self.group = group
        self.n_computed = self.n_reachable = self.n_cached = 0
        self.max_reuse = len(tokens)
        self.checkpoints: dict[int, CheckpointReason] = {}
        self.started = self.waiting = self.ignores_cache = False

    @property
    def unfinished(self) -> bool:
        """Tell whether tokens of the prompt are left to prefill."""
        return self.n_computed < len(self.tokens)

    @property
    def next_checkpoint(self) -> int:
        """Return the next position to stop at for a checkpoint; the prompt's end if there is none."""
        return min((n for n in self.checkpoints if n > self.n_computed), default=len(self.tokens))


class SequenceContents:
    """The known contents of a sequence: the K and V of the first n_tokens of `tokens`; it may hold more.

    has_state: whether it also has the state after the last of them.
    has_logits: whether that state includes the logits.
    in_use: whether a request prefills or decodes there.
    last_used: the tick at which a request last took the sequence.
    group: the requests that may reuse it.
    continued: whether another text is known to begin as this one does, or the caller expects one.
    """

    __slots__ = ("continued", "group", "has_logits", "has_state", "in_use", "last_used", "n_tokens", "tokens")

    def __init__(
        self,
        tokens: Tokens = NO_TOKENS,
        n_tokens: int = 0,
        *,
        has_state: bool = False,
        has_logits: bool = False,
        in_use: bool = False,
        last_used: int = 0,
        group: object = None,
        continued: bool = False,
    ) -> None:
        self.tokens, self.n_tokens, self.has_state, self.has_logits = tokens, n_tokens, has_state, has_logits
        self.in_use, self.last_used, self.group, self.continued = in_use, last_used, group, continued

    @property
    def known_tokens(self) -> Tokens:
        """Return the tokens whose K and V it is known to hold."""
        return self.tokens[: self.n_tokens]

    def common_prefix_length(self, tokens: Tokens) -> int:
        """Return the number of leading tokens that both have."""
        return common_prefix_length(self.known_tokens, tokens)


@dataclass(frozen=True)
class CacheHit:
    """A position that a prompt can continue from: after n_tokens, in a sequence that keeps its first n_kept tokens.

    node: the checkpoint's node; None if the state is that of a sequence, or the prompt starts from nothing.
    source: the sequence to copy the other K and V from; None for host memory.
    """

    seq: int
    n_tokens: int = 0
    n_kept: int = 0
    node: RadixNode | None = None
    source: int | None = None


@dataclass(frozen=True)
class PrefixFigures:
    """Counters of the prefix cache.

    nbytes: host memory in use.
    nodes, checkpoints: those of the radix tree.
    tokens: tokens with K and V in host memory.
    lookups: prompts that began prefill. hits: those of them that found cached tokens. found: the cached tokens.
    copied, loaded, saved: tokens whose K and V were copied between sequences, from host memory, and to host memory.
    evicted, evicted_tokens: evicted checkpoints, and tokens whose K and V left host memory with them.
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
