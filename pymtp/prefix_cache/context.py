"""The methods of a context that the prefix cache calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymtp.prefix_cache.tree import Bytes, Tokens


class PrefixContext(Protocol):
    """A context whose K and V ("cells", a row per token, those of the head included) and states can be copied.

    The state of a sequence is all that its tokens leave behind beside K and V: the recurrent states, hidden states that
    the head has not processed yet, and, until a token is sampled, the logits of the last token. After `keep_cells`,
    `copy_cells` and `load_cells` a sequence has K and V, but no state until `load_state`.
    """

    n_seq_max: int
    n_ubatch: int

    @property
    def cell_bytes(self) -> int:
        """Return the bytes of one token's K and V."""

    @property
    def state_bytes(self) -> int:
        """Return the largest size of a state, its logits included."""

    def tokens_held(self, seq: int = 0) -> int: ...
    def begins_with(self, tokens: Tokens, seq: int = 0) -> bool:
        """Tell whether the sequence begins with these tokens."""

    def tokens(self, seq: int = 0) -> list[int]: ...
    def clear(self, seq: int | None = None) -> None: ...
    def copy(self, source: int, seq: int) -> None:
        """Copy K, V and state to an empty sequence."""

    def keep_cells(self, n: int, seq: int = 0) -> None:
        """Keep the K and V of the first n tokens, and nothing else."""

    def copy_cells(self, source: int, seq: int, first: int, n: int) -> None:
        """Copy the K and V of n tokens, the first one at `first`, behind those that the sequence has."""

    def load_cells(self, seq: int, first: int, cells: Sequence[Bytes]) -> None:
        """Load K and V behind those that the sequence has: arrays with a row per token."""

    def save_cells(self, seq: int, first: int, n: int) -> Bytes: ...
    def load_state(self, seq: int, tokens: Sequence[int], state: Bytes) -> None: ...
    def check_state(self, tokens: Sequence[int], state: Bytes) -> bool:
        """Tell whether a state has logits. Raises InvalidRequestError if it cannot be loaded with these tokens."""

    def save_state(self, seq: int = 0) -> Bytes:
        """Return the state after all tokens of the sequence."""
