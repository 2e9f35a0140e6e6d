"""A target and a draft context of one model: prefill, draft, verify, rewind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymtp.errors import ClosedError, InvalidRequestError, NativeError
from pymtp.model import TAPS, Model
from pymtp.native import check, ffi, last_error, lib

Logits = NDArray[np.float32]

CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
FLASH_ATTN = ("auto", "on", "off")
CTX_STEP = 256  # llama.cpp rounds n_ctx up to a multiple of this


def physical_cores() -> int:
    """Cores this process may run on, hardware threads of one core counted once."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(topology.read_text() if topology.is_file() else str(cpu))
    return max(1, len(siblings))


@dataclass(frozen=True)
class Counters:
    """Work of a context since it was made: wall seconds of each phase, and launches."""

    prefill_seconds: float
    head_sync_seconds: float
    draft_seconds: float
    verify_seconds: float
    rewind_seconds: float
    target_decodes: int
    draft_decodes: int


class Context:
    """One sequence in the caches of a target context and, with drafts, of the head's draft context.

    The target holds `n_past` tokens. `draft` is called with the token that comes next and then with each draft it
    led to; `verify` takes that token and the drafts; `rewind` takes back the drafts that were not accepted.

    Logits come back as arrays over native memory: they are overwritten by the next call, copy what you keep.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: str = "auto",
        draft_tokens: int = 0,
        tap: str = "auto",
    ) -> None:
        """
        n_ctx: tokens that fit, rounded up to a multiple of 256; 0 takes the length the model was trained for.
        n_batch, n_ubatch: tokens of a prompt handed over at once, and computed at once: the latter no more than the
            former, and with drafts both at least draft_tokens + 2.
        n_threads: None for the physical cores.
        type_k, type_v: types of the K and V cache, one of CACHE_TYPES. A quantized V needs flash attention.
        draft_tokens: the most drafts a round; 0 for no draft context.
        tap: the hidden state that the head takes: "post_norm", "pre_norm", or "auto" for what the model wants.

        Raises InvalidRequestError for values outside their range, NativeError when llama.cpp cannot make the contexts.
        """
        tap = model.tap if tap == "auto" else tap
        _one_of("tap", tap, TAPS)
        _one_of("type_k", type_k, CACHE_TYPES)
        _one_of("type_v", type_v, CACHE_TYPES)
        _one_of("flash_attn", flash_attn, FLASH_ATTN)
        _in_range("n_ctx", n_ctx, 0)
        _in_range("draft_tokens", draft_tokens, 0, 64)
        # llama.cpp limits the batch by n_ctx before it rounds that up
        n_ctx = -(-n_ctx // CTX_STEP) * CTX_STEP
        # llama.cpp keeps the rows of a verification in one ubatch, for the recurrent layers to go back within them, and
        # asserts that a ubatch is longer than that
        least = draft_tokens + 2 if draft_tokens else 1
        _in_range("n_batch", n_batch, least)
        _in_range("n_ubatch", n_ubatch, least)
        n_threads = physical_cores() if n_threads is None else n_threads
        _in_range("n_threads", n_threads, 1, 512)
        if type_v not in ("f16", "f32", "bf16") and flash_attn == "off":
            raise InvalidRequestError(f'type_v="{type_v}" needs flash attention: flash_attn="auto" or "on"')
        if draft_tokens and not model.mtp:
            raise InvalidRequestError(
                f"draft_tokens={draft_tokens} needs a multi-token-prediction head, and {model.path.name} "
                + ("was loaded without it" if model.has_head else "has none: use draft_tokens=0")
            )
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = n_batch
        params.n_ubatch = n_ubatch
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = getattr(lib, f"GGML_TYPE_{type_k.upper()}")
        params.type_v = getattr(lib, f"GGML_TYPE_{type_v.upper()}")
        params.flash_attn_type = {
            "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
            "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }[flash_attn]
        pair = lib.pymtp_pair_init(model.handle, params, draft_tokens, TAPS.index(tap))
        if pair == ffi.NULL:
            raise NativeError(last_error())
        self._pair: Any = ffi.gc(pair, lib.pymtp_pair_free)
        self._logits = ffi.new("const float **")
        self._n_vocab = model.n_vocab
        self.model = model
        self.draft_tokens = draft_tokens
        self.tap = tap
        self.n_ctx: int = lib.llama_n_ctx(lib.pymtp_pair_target(pair))

    @property
    def _handle(self) -> Any:
        if self._pair is None:
            raise ClosedError("the context is closed")
        return self._pair

    def close(self) -> None:
        """Frees the caches. Harmless when called twice."""
        if self._pair is not None:
            ffi.release(self._pair)
            self._pair = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def n_past(self) -> int:
        """Tokens that the target holds."""
        return int(lib.pymtp_pair_n_past(self._handle))

    @property
    def n_head(self) -> int:
        """Rows that the head's cache holds, made from the target's hidden states."""
        return int(lib.pymtp_pair_n_head(self._handle))

    def _rows(self, n: int) -> Logits:
        data = ffi.buffer(self._logits[0], n * self._n_vocab * 4)
        return np.frombuffer(data, dtype=np.float32).reshape(n, self._n_vocab)

    def prefill(self, tokens: Sequence[int]) -> Logits:
        """Takes a prompt, or more of it, through target and head. Returns the last token's logits, shape (n_vocab,).

        Raises ContextFullError (nothing is changed) when it does not fit; CancelledError, or what a signal handler
        raised, with the context emptied.
        """
        array = ffi.new("llama_token[]", tokens)
        check(lib.pymtp_pair_prefill(self._handle, array, len(tokens), self._logits))
        return self._rows(1).reshape(-1)

    def draft(self, token: int) -> Logits:
        """One step of the head: logits, shape (n_vocab,), for the token after `token`.

        token: the token after the last that the target holds; then, step by step, each draft made from it. Raises
        InvalidRequestError past `draft_tokens` steps, ContextFullError at the end of the context.
        """
        check(lib.pymtp_pair_draft(self._handle, token, self._logits))
        return self._rows(1).reshape(-1)

    def verify(self, tokens: Sequence[int]) -> Logits:
        """Takes 1 to 1+draft_tokens tokens through the target: logits after each, shape (len(tokens), n_vocab)."""
        array = ffi.new("llama_token[]", tokens)
        check(lib.pymtp_pair_verify(self._handle, array, len(tokens), self._logits))
        return self._rows(len(tokens))

    def rewind(self, n_keep: int) -> None:
        """Goes back to the first `n_keep` tokens: only drafts of the last verification can be taken back, once.

        No state is copied: the recurrent layers turn to a snapshot they wrote. Raises InvalidRequestError otherwise.
        """
        check(lib.pymtp_pair_rewind(self._handle, n_keep))

    def clear(self) -> None:
        """Empties the caches."""
        lib.pymtp_pair_clear(self._handle)

    def cancel(self, cancelled: bool = True) -> None:
        """From any thread: while set, native calls end with CancelledError, within a ubatch."""
        lib.pymtp_pair_cancel(self._handle, cancelled)

    def break_on_purpose(self, fault: str) -> None:
        """Makes one of the mistakes of enum pymtp_fault from now on, "none" ends it. For tests: greedy text does not
        show them, acceptance and the head's logits must."""
        lib.pymtp_pair_break(self._handle, getattr(lib, f"PYMTP_FAULT_{fault.upper()}"))

    @property
    def counters(self) -> Counters:
        """A snapshot of the work done so far."""
        c = ffi.new("struct pymtp_counters *")
        lib.pymtp_pair_counters(self._handle, c)
        return Counters(
            prefill_seconds=c.prefill_seconds,
            head_sync_seconds=c.head_sync_seconds,
            draft_seconds=c.draft_seconds,
            verify_seconds=c.verify_seconds,
            rewind_seconds=c.rewind_seconds,
            target_decodes=c.target_decodes,
            draft_decodes=c.draft_decodes,
        )


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InvalidRequestError(f"{name}={value!r} is not known, use one of {', '.join(known)}")


def _in_range(name: str, value: int, low: int, high: int = 2**31 - 1) -> None:
    if not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequestError(f"{name}={value!r} must be a whole number from {low} to {high}")
