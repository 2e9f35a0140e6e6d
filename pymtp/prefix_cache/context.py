"""What the prefixes need of a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymtp.prefix_cache.tree import Bytes, Tokens


class PrefixContext(Protocol):
    """K and V of tokens, of the head's layers too, and states, which go between sequences and host memory.

    The state of a sequence is what its tokens leave behind beside K and V: recurrent states, what the head has yet to
    take, and, until something is sampled, the logits of the last token. After `keep_cells`, `copy_cells` and
    `load_cells` a sequence has K and V, and no state until `load_state`.
    """

    n_seq_max: int
    n_ubatch: int

    @property
    def cell_bytes(self) -> int:
        """K and V of a token."""

    @property
    def state_bytes(self) -> int:
        """The most that a state takes, its logits included."""

    def tokens_held(self, seq: int = 0) -> int: ...
    def begins_with(self, tokens: Tokens, seq: int = 0) -> bool:
        """Whether these are the first tokens that it holds."""

    def tokens(self, seq: int = 0) -> list[int]: ...
    def clear(self, seq: int | None = None) -> None: ...
    def copy(self, source: int, seq: int) -> None:
        """K, V and state, to an empty sequence."""

    def keep_cells(self, n: int, seq: int = 0) -> None:
        """K and V of the first n tokens stay, and nothing else."""

    def copy_cells(self, source: int, seq: int, first: int, n: int) -> None:
        """K and V of n tokens from the first on follow those that the sequence has."""

    def load_cells(self, seq: int, first: int, cells: Sequence[Bytes]) -> None:
        """Likewise: arrays with a row a token."""

    def save_cells(self, seq: int, first: int, n: int) -> Bytes: ...
    def load_state(self, seq: int, tokens: Sequence[int], state: Bytes) -> None: ...
    def check_state(self, tokens: Sequence[int], state: Bytes) -> bool:
        """Whether it has logits. Raises InvalidRequestError for one that could not be loaded with these tokens."""

    def save_state(self, seq: int = 0) -> Bytes:
        """As it is after all tokens held."""
