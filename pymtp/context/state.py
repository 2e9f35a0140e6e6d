"""The state of sequences: K and V and recurrent states, to the host's memory and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymtp.context.host_memory import host_bytes
from pymtp.context.options import PREFILL_MODES
from pymtp.errors import ContextFullError, InvalidRequestError, NativeError
from pymtp.native import Handle, alone, check, ffi, last_error, lib
from pymtp.native.build_info import kernels
from pymtp.validation import read_int

Bytes = NDArray[np.uint8]


class SequenceState:
    """The part of a Context that saves the state of a sequence, and loads it into another.

    A prefix has two parts: K and V of its tokens, which can be cut between any two tokens, and the recurrent state at
    one position, which cannot be cut. A sequence gets a prefix in two steps. First it gets K and V, by any number of
    calls of `load_cells`, `copy_cells` and `keep_cells`, each of which continues where the one before ended; meanwhile
    the sequence holds no tokens. Then `load` loads the state and gives the sequence its tokens. K and V without a
    state are dropped when the sequence is emptied or gets tokens in another way.

    cell_bytes: the number of bytes that K and V of one token have. K and V of the target's layers come before those of
        the head; in each layer, K comes before V.
    max_bytes: the largest size of a state with logits, in bytes: see `save`.
    """

    def __init__(self, handle: Handle, n_ctx: int, n_seq_max: int) -> None:
        self._handle, self._n_ctx, self._n_seq_max = handle, n_ctx, n_seq_max
        self.cell_bytes: int = lib.pymtp_pair_cell_bytes(handle.pointer)
        self.max_bytes: int = lib.pymtp_pair_state_bytes(handle.pointer)
        if self.cell_bytes < 0 or self.max_bytes < 0:
            raise NativeError(last_error())

    @property
    @alone
    def cell_options(self) -> dict[str, str]:
        """Return the options that the bits of K, V and states depend on, beside text, model and tap.

        An option "auto" is replaced by the value in use. "kernels" names the buffer types of the weights, repacked or
        not, and the instruction sets that the kernels were compiled for.
        """
        found = ffi.new("struct pymtp_cell_format *")
        check(lib.pymtp_pair_cell_format(self._handle.pointer, found))
        return {
            "type_k": ffi.string(found.type_k).decode(),
            "type_v": ffi.string(found.type_v).decode(),
            "flash_attn": "on" if found.flash_attn else "off",
            "n_ubatch": str(found.n_ubatch),
            "prefill": PREFILL_MODES[found.prefill],
            "head": "with drafts" if found.head else "without drafts",
            "kernels": f"{ffi.string(found.weights).decode()}; {kernels()}",
        }

    @alone
    def save_cells(self, seq: int, first: int, n: int) -> Bytes:
        """Return K and V of n tokens from position `first` on: one row per token, shape (n, cell_bytes).

        A row does not depend on the sequence or on the cells that it is read from. Before the copy, unverified drafts
        are dropped and the head computes its pending hidden states; a rewind is not possible afterwards.

        Raises InvalidRequestError for tokens that the sequence does not hold, and CancelledError. After CancelledError
        the sequence may be empty, if the head had pending hidden states.
        """
        read_int("seq", seq, 0, self._n_seq_max - 1)
        held = lib.pymtp_pair_n_past(self._handle.pointer, seq)
        first = read_int("first", first, 0, held)
        n = read_int("n", n, 0, held - first)
        cells = host_bytes(n, self.cell_bytes)
        check(lib.pymtp_pair_save_cells(self._handle.pointer, seq, first, n, _pointer(cells)))
        return cells

    @alone
    def load_cells(self, seq: int, first: int, cells: Sequence[Bytes]) -> None:
        """Load K and V of tokens from position `first` on into a sequence that holds no tokens.

        cells: arrays of shape (n, cell_bytes), in the order of their tokens. The sequence must have K and V of all
        tokens before `first`.

        Raises InvalidRequestError for a sequence that holds tokens, for a gap before `first`, and for arrays of another
        shape, and ContextFullError for more tokens than n_ctx; in all these cases nothing is changed. After
        CancelledError and NativeError the sequence is empty.
        """
        width = self.cell_bytes
        for rows in cells:
            if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width or not rows.flags.c_contiguous:
                raise InvalidRequestError(
                    f"K and V are contiguous rows of {width} bytes, not {rows.dtype} of shape {rows.shape}"
                )
        first = read_int("first", first, 0, self._n_ctx)
        n = sum(map(len, cells))
        if first + n > self._n_ctx:
            raise ContextFullError(f"{first} tokens and {n} more exceed n_ctx = {self._n_ctx}")
        for rows in cells:
            check(lib.pymtp_pair_load_cells(self._handle.pointer, seq, first, len(rows), _pointer(rows)))
            first += len(rows)

    @alone
    def copy_cells(self, source: int, seq: int, first: int, n: int) -> None:
        """Copy K and V of n tokens, from position `first` on, from sequence `source`, on the device.

        The source's drafts are dropped and its head catches up first, as for `save_cells`. The conditions for `seq` and
        the errors are those of `load_cells`.
        """
        check(lib.pymtp_pair_copy_cells(self._handle.pointer, source, seq, first, n))

    @alone
    def keep_cells(self, n: int, seq: int = 0) -> None:
        """Empty a sequence, but keep K and V of its first n tokens as if `load_cells` had loaded them.

        Raises InvalidRequestError for a sequence of fewer than n tokens.
        """
        check(lib.pymtp_pair_retain_cells(self._handle.pointer, seq, n))

    @alone
    def save(self, seq: int = 0, *, logits: bool = True) -> Bytes:
        """Return the state of a sequence except K and V: the recurrent states and a hidden state for the head.

        logits: include the logits of the last token, if `first_token` could sample from them now.

        Drafts are dropped and the head catches up first, as for `save_cells`. Raises as `save_cells`.
        """
        needed = ffi.new("size_t *")
        check(lib.pymtp_pair_save_state(self._handle.pointer, seq, logits, ffi.NULL, 0, needed))
        state = host_bytes(needed[0])
        check(lib.pymtp_pair_save_state(self._handle.pointer, seq, logits, _pointer(state), len(state), needed))
        return state

    @alone
    def check(self, tokens: Sequence[int], state: Bytes | bytes) -> bool:
        """Return whether a state has the logits of the last token.

        Raises InvalidRequestError, which names the mismatch, for a state that `load` would refuse with these
        tokens.
        """
        data, logits = ffi.from_buffer("uint8_t[]", state), ffi.new("bool *")
        check(lib.pymtp_pair_check_state(self._handle.pointer, list(tokens), len(tokens), data, len(data), logits))
        return bool(logits[0])

    @alone
    def load(self, seq: int, tokens: Sequence[int], state: Bytes | bytes) -> None:
        """Load a state into a sequence that has K and V of `tokens`; the sequence holds these tokens from then on.

        The sequence continues with the logits, drafts and text of the saved sequence. It keeps its own sampling, which
        treats the tokens as a prompt. A rewind is not possible.

        Raises InvalidRequestError for a sequence that holds tokens or lacks K and V of some of `tokens`, and for a
        state that is cut short or belongs to another text or context; in all these cases nothing is changed. After
        CancelledError and NativeError the sequence is empty.
        """
        data = ffi.from_buffer("uint8_t[]", state)
        check(lib.pymtp_pair_load_state(self._handle.pointer, seq, list(tokens), len(tokens), data, len(data)))


def replays(state: Bytes) -> bool:
    """Return whether the state holds tokens to replay. A context with fewer drafts a round cannot load such a state."""
    return bool(state[12:16].any())  # see state_header in runtime/state_store.cpp


def _pointer(array: Bytes) -> Any:
    return ffi.from_buffer("uint8_t[]", array)
