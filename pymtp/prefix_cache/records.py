"""Records of the prefix cache: a prompt in prefill, the contents of a sequence, a cache hit, and the figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pymtp.prefix_cache.checkpoints import CheckpointReason
from pymtp.prefix_cache.tree import RadixNode, Tokens, as_tokens, common_prefix_length

NO_TOKENS = as_tokens([])


class PrefillState:
    """A request's prompt while it is prefilled, and its sequence.

    rank: requests with a lower rank are served first.
    branch_points: positions where later prompts are expected to branch off.
    group: the prompt reuses the contents of a sequence only if a request of the same group left them there.
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
        """Return whether tokens of the prompt are left to prefill."""
        return self.n_computed < len(self.tokens)

    @property
    def next_checkpoint(self) -> int:
        """Return the next position to stop at for a checkpoint; the prompt's end if there is none."""
        return min((n for n in self.checkpoints if n > self.n_computed), default=len(self.tokens))


class SequenceContents:
    """The known contents of a sequence: it has at least the K and V of the first n_tokens of `tokens`.

    has_state: whether the sequence also has the state after these n_tokens.
    has_logits: whether that state includes the logits.
    in_use: whether a request prefills or decodes in the sequence.
    last_used: the tick at which a request last took the sequence.
    group: only requests of this group may reuse the contents.
    continued: whether another text is known, or expected, to begin with the same tokens.
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
