"""What the sequences of a context hold, to the host's memory and from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymtp.context.host_memory import host_bytes
from pymtp.context.inspect import Inspected
from pymtp.context.options import PREFILL_MODES
from pymtp.errors import ContextFullError, InvalidRequestError, NativeError
from pymtp.native import check, ffi, last_error, lib
from pymtp.native.build_info import kernels
from pymtp.native.locking import alone
from pymtp.validation import in_range

Bytes = NDArray[np.uint8]


class Saving(Inspected):
    """The part of a Context that saves what a sequence holds, and makes one hold what was saved.

    A prefix is K and V of its tokens, which can be cut between any two, and the state that a text goes on from, which
    cannot. A sequence comes to hold it in two steps: it gets K and V, by `load_cells`, `copy_cells` and `keep_cells`
    as they follow each other, and holds no tokens yet; then `load_state`. K and V that wait for it are forgotten when
    the sequence is emptied or given tokens in another way.
    """

    n_ctx: int

    @property
    @alone
    def cell_bytes(self) -> int:
        """Bytes of a token's K and V, those of the target's layers before the head's; of a layer K before V."""
        return self._cell_bytes()

    def _cell_bytes(self) -> int:
        n: int = lib.pymtp_pair_cell_bytes(self._pair)
        if n < 0:
            raise NativeError(last_error())
        return n

    @property
    @alone
    def state_bytes(self) -> int:
        """The most bytes that a state takes, with logits: see `save_state`."""
        n: int = lib.pymtp_pair_state_bytes(self._pair)
        if n < 0:
            raise NativeError(last_error())
        return n

    @property
    @alone
    def cell_options(self) -> dict[str, str]:
        """What the bits of K, V and states depend on beside text, model and tap, by the names of the options. What was
        "auto" is what it came to. "kernels" has the kinds of buffers that weights are in, repacked or not, and the
        instructions that the kernels were compiled for."""
        found = ffi.new("struct pymtp_cell_format *")
        check(lib.pymtp_pair_cell_format(self._pair, found))
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
    def begins_with(self, tokens: NDArray[np.int32], seq: int = 0) -> bool:
        """Whether these are the first tokens that a sequence holds."""
        self._check_seq(seq)
        n = lib.pymtp_pair_n_past(self._pair, seq)
        if len(tokens) > n:
            return False
        held = np.frombuffer(ffi.buffer(lib.pymtp_pair_tokens(self._pair, seq), 4 * n), dtype=np.int32) if n else tokens
        return bool(np.array_equal(held[: len(tokens)], tokens))

    @alone
    def save_cells(self, seq: int, first: int, n: int) -> Bytes:
        """K and V of n tokens from `first` on, shape (n, cell_bytes): a row a token, whatever the sequence and its
        cells. Before that, what was drafted is forgotten, and the head takes the tokens that it is behind by; nothing
        can be rewound then.

        Raises InvalidRequestError for tokens that the sequence does not hold, and CancelledError: where the head was
        behind, the sequence may be empty then.
        """
        self._check_seq(seq)
        held = lib.pymtp_pair_n_past(self._pair, seq)
        first = in_range("first", first, 0, held)
        n = in_range("n", n, 0, held - first)
        cells = host_bytes(n, self._cell_bytes())
        check(lib.pymtp_pair_save_cells(self._pair, seq, first, n, _pointer(cells)))
        return cells

    @alone
    def load_cells(self, seq: int, first: int, cells: Sequence[Bytes]) -> None:
        """Puts K and V of tokens from `first` on into a sequence that holds none: arrays of whole rows, those of one
        after those of the one before. The sequence has K and V of all tokens before the first.

        Raises InvalidRequestError for a sequence that holds tokens, gaps, arrays of another shape and more tokens than
        n_ctx: then nothing is changed. CancelledError and NativeError: with the sequence emptied.
        """
        width = self._cell_bytes()
        for rows in cells:
            if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width or not rows.flags.c_contiguous:
                raise InvalidRequestError(
                    f"K and V are contiguous rows of {width} bytes, not {rows.dtype} of shape {rows.shape}"
                )
        first = in_range("first", first, 0, self.n_ctx)
        n = sum(map(len, cells))
        if first + n > self.n_ctx:
            raise ContextFullError(f"{first} tokens and {n} more exceed n_ctx = {self.n_ctx}")
        for rows in cells:
            check(lib.pymtp_pair_load_cells(self._pair, seq, first, len(rows), _pointer(rows)))
            first += len(rows)

    @alone
    def copy_cells(self, source: int, seq: int, first: int, n: int) -> None:
        """As `load_cells`, with K and V of another sequence, without a way through the host. With `source` it does
        first what `save_cells` does."""
        check(lib.pymtp_pair_copy_cells(self._pair, source, seq, first, n))

    @alone
    def keep_cells(self, n: int, seq: int = 0) -> None:
        """Empties a sequence but for K and V of its first n tokens, as if they had been loaded. Raises
        InvalidRequestError where it does not hold as many."""
        check(lib.pymtp_pair_retain_cells(self._pair, seq, n))

    @alone
    def save_state(self, seq: int = 0, *, logits: bool = True) -> Bytes:
        """All that the tokens held leave behind beside K and V: recurrent states, a hidden state for the head, and,
        with `logits`, those of the last token, where `first_token` could have them. Does first what `save_cells` does,
        and raises as it does."""
        needed = ffi.new("size_t *")
        check(lib.pymtp_pair_save_state(self._pair, seq, logits, ffi.NULL, 0, needed))
        state = host_bytes(needed[0])
        check(lib.pymtp_pair_save_state(self._pair, seq, logits, _pointer(state), len(state), needed))
        return state

    @alone
    def check_state(self, tokens: Sequence[int], state: Bytes | bytes) -> bool:
        """Whether a state has the logits of the last token. Raises InvalidRequestError, with what does not fit, for one
        that `load_state` would not take with these tokens."""
        data, logits = ffi.from_buffer("uint8_t[]", state), ffi.new("bool *")
        check(lib.pymtp_pair_check_state(self._pair, list(tokens), len(tokens), data, len(data), logits))
        return bool(logits[0])

    @alone
    def load_state(self, seq: int, tokens: Sequence[int], state: Bytes | bytes) -> None:
        """Makes a sequence that has K and V of `tokens` hold them, as if it had read them: its logits, drafts and text
        are those of the sequence that was saved. Its sampling stays its own, for which they are a prompt, and nothing
        can be rewound.

        Raises InvalidRequestError for a sequence that holds tokens or has K and V of fewer, and for a state of another
        text, of other contexts, or cut short: then nothing is changed. CancelledError and NativeError: with the
        sequence emptied.
        """
        data = ffi.from_buffer("uint8_t[]", state)
        check(lib.pymtp_pair_load_state(self._pair, seq, list(tokens), len(tokens), data, len(data)))


def replays(state: Bytes) -> bool:
    """Whether recurrent states in it are some tokens behind, which follow: where drafts are fewer it does not fit."""
    return bool(state[12:16].any())  # see state_header in runtime/save.cpp


def _pointer(array: Bytes) -> Any:
    return ffi.from_buffer("uint8_t[]", array)
