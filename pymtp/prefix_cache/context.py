"""The methods of a context that the prefix cache calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymtp.prefix_cache.tree import Bytes, Tokens


class StateOfSequences(Protocol):
    """The calls that copy K and V ("cells", a row per token, those of the head included) and states.

    The state of a sequence is everything that its tokens leave behind except K and V: the recurrent states, hidden
    states that the head has not processed yet, and, until a token is sampled, the logits of the last token. After
    `keep_cells`, `copy_cells` and `load_cells` a sequence has K and V, but no state until `load`.

    cell_bytes: the size of one token's K and V, in bytes.
    max_bytes: the largest size that a state can have, in bytes, its logits included.
    """

    cell_bytes: int
    max_bytes: int

    def keep_cells(self, n: int, seq: int = 0) -> None:
        """Keep the K and V of the first n tokens of a sequence, and drop everything else that it has."""

    def copy_cells(self, source: int, seq: int, first: int, n: int) -> None:
        """Append the K and V of n tokens of `source`, from position `first` on, to those of `seq`."""

    def load_cells(self, seq: int, first: int, cells: Sequence[Bytes]) -> None:
        """Append K and V from host memory, from position `first` on: arrays with one row per token."""

    def save_cells(self, seq: int, first: int, n: int) -> Bytes: ...
    def load(self, seq: int, tokens: Sequence[int], state: Bytes) -> None: ...
    def check(self, tokens: Sequence[int], state: Bytes) -> bool:
        """Return whether a state has logits. Raises InvalidRequestError if it cannot be loaded with these tokens."""

    def save(self, seq: int = 0) -> Bytes:
        """Return the state after all tokens of the sequence."""


class PrefixContext(Protocol):
    """A context whose sequences can be copied, saved and loaded."""

    n_seq_max: int
    n_ubatch: int

    @property
    def state(self) -> StateOfSequences: ...
    def tokens_held(self, seq: int = 0) -> int: ...
    def begins_with(self, tokens: Tokens, seq: int = 0) -> bool:
        """Return whether the sequence begins with these tokens."""

    def tokens(self, seq: int = 0) -> list[int]: ...
    def clear(self, seq: int | None = None) -> None: ...
    def copy(self, source: int, seq: int) -> None:
        """Copy K, V and the state of a sequence to an empty one."""
