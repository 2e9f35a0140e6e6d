"""What is known of prompts that are read, of sequences, and of places to go on from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pymtp.prefix_cache.checkpoints import Why
from pymtp.prefix_cache.tree import Node, Tokens, as_tokens, shared

NOTHING = as_tokens([])


class Reader:
    """A request's prompt while it is read, and its sequence.

    n: tokens of the prompt that the sequence holds. here: those that it could hold now without reading. found: those
    that were there when it began, or came to be there meanwhile. stops: where it is to stop for checkpoints. waits:
    whether it waits for another reader. alone: it goes on from nothing, and waits for nobody. most: after more tokens
    than these it goes on only where it reads itself.
    """

    def __init__(
        self, tokens: Tokens, rank: tuple[int, int], marks: Iterable[int], seq: int, family: object = None
    ) -> None:
        self.tokens, self.rank, self.marks, self.seq, self.family = tokens, rank, tuple(marks), seq, family
        self.n = self.here = self.found = 0
        self.most = len(tokens)
        self.stops: dict[int, Why] = {}
        self.begun = self.waits = self.alone = False

    @property
    def reads(self) -> bool:
        """Whether there is more of the prompt to read."""
        return self.n < len(self.tokens)

    @property
    def stop(self) -> int:
        """Where its reading is to stop next, at the latest."""
        return min((place for place in self.stops if place > self.n), default=len(self.tokens))


class Held:
    """What a sequence holds: the K and V of n tokens that are known, and perhaps more.

    live: whether its state is that of the last of them. logits: likewise. busy: whether a request reads or writes
    there. used: when one began to. family: who may go on from there. goes_on: whether another text is known that begins
    as this one does, or its caller says that one will come.
    """

    __slots__ = ("busy", "family", "goes_on", "live", "logits", "n", "tokens", "used")

    def __init__(
        self,
        tokens: Tokens = NOTHING,
        n: int = 0,
        *,
        live: bool = False,
        logits: bool = False,
        busy: bool = False,
        used: int = 0,
        family: object = None,
        goes_on: bool = False,
    ) -> None:
        self.tokens, self.n, self.live, self.logits, self.busy = tokens, n, live, logits, busy
        self.used, self.family, self.goes_on = used, family, goes_on

    def shared(self, tokens: Tokens) -> int:
        """How many tokens it begins with that these begin with, too."""
        return shared(self.tokens[: self.n], tokens)


@dataclass(frozen=True)
class Place:
    """Where a prompt goes on: after n tokens, in a sequence that keeps the first `kept` of what it holds.

    node: whose checkpoint it is; None for the state of a sequence, or for the beginning. source: the sequence that
    has what is not kept; None for host memory.
    """

    seq: int
    n: int = 0
    kept: int = 0
    node: Node | None = None
    source: int | None = None


@dataclass(frozen=True)
class PrefixFigures:
    """nbytes: in host memory. nodes, checkpoints: of the tree. tokens: whose K and V are in host memory.
    lookups: prompts that began; hits: those of them that found something. found: tokens that they found.
    copied, loaded, saved: tokens whose K and V went from sequence to sequence, from host memory and there.
    evicted, evicted_tokens: checkpoints that went, and tokens whose K and V left host memory with them.
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
