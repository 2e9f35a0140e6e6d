"""Options of a context: checks, and conversion to the C structs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.model.model import TAPS, Model
from pymtp.model.rope import RopeOptions
from pymtp.native import ffi, lib
from pymtp.native.cores import MAX_THREADS
from pymtp.sampling import MAX_DRAFTS
from pymtp.validation import is_whole, read_bool, read_int, shown

CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
FLASH_ATTN = ("auto", "on", "off")
DRAWS = ("auto", "host", "device")  # in the order of enum pymtp_sample_on
# With draft_vocab="auto", drafts are chosen from this many of Qwen's 248,320 tokens, at first those of the earliest
# merges: see docs/draft-vocabulary.md.
AUTO_DRAFT_VOCAB = 32768
PREFILL_MODES = ("fused", "host-copy", "all-outputs")  # in the order of enum pymtp_prefill_mode
CTX_STEP = 256  # llama.cpp rounds n_ctx up to a multiple of this
MAX_CELLS = 2**31 - CTX_STEP  # for all sequences together: llama.cpp counts cells in 32 bits
MAX_SEQ = 256  # LLAMA_MAX_SEQ


def native_options(
    model: Model,
    *,
    n_ctx: int,
    n_batch: int = 2048,
    n_ubatch: int = 512,
    n_seq_max: int = 1,
    n_threads: int = 1,
    type_k: str = "f16",
    type_v: str = "f16",
    flash_attn: str = "auto",
    draft_tokens: int = 0,
    tap: str = "auto",
    prefill: str = "fused",
    draws: str = "auto",
    draft_vocab: int | str = "auto",
    offload_kqv: bool = True,
    rope: RopeOptions | None = None,
    max_outputs: int = 1,
    embeddings: bool = False,
    trace: bool = False,
    all_threads: bool = False,
) -> tuple[Any, Any]:
    """Convert the options of a Context to the C structs `llama_context_params` and `pymtp_pair_options`.

    model: only the metadata of its file is read. Raises InvalidRequestError for values outside their range.
    """
    check_options(
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_seq_max=n_seq_max,
        n_threads=n_threads,
        type_k=type_k,
        type_v=type_v,
        flash_attn=flash_attn,
        draft_tokens=draft_tokens,
        draft_vocab=draft_vocab,
        tap=tap,
        prefill=prefill,
        draws=draws,
        offload_kqv=offload_kqv,
        all_threads=all_threads,
    )
    n_ctx, n_seq_max, n_threads, draft_tokens = map(int, (n_ctx, n_seq_max, n_threads, draft_tokens))
    tap = model.tap if tap == "auto" else tap
    max_outputs = read_int("max_outputs", max_outputs, 1)
    asked_ctx = n_ctx or model.n_ctx_train
    n_ctx = whole_ctx(asked_ctx)  # here, since llama.cpp limits the batch by n_ctx before it rounds n_ctx up
    if draft_tokens and not model.mtp:
        raise InvalidRequestError(
            f"draft_tokens={draft_tokens} needs a multi-token-prediction head, and {model.path.name} "
            + (
                "was loaded without it"
                if model.has_head or model.options.head
                else "has none: use draft_tokens=0, or head=FILE for one in a file of its own"
            )
            + (f" ({model.head_absent})" if model.head_absent else "")
        )
    _check_tap(draft_tokens, prefill, tap)
    _check_cells(asked_ctx, n_seq_max)
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx * n_seq_max
    params.n_batch = int(n_batch)
    params.n_ubatch = int(n_ubatch)
    params.n_threads = params.n_threads_batch = n_threads
    params.type_k = getattr(lib, f"GGML_TYPE_{type_k.upper()}")
    params.type_v = getattr(lib, f"GGML_TYPE_{type_v.upper()}")
    params.flash_attn_type = {
        "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
        "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    }[flash_attn]
    params.offload_kqv = bool(offload_kqv)
    if rope is not None:
        rope.write(params)
    options = ffi.new("struct pymtp_pair_options *")
    options.n_draft = draft_tokens
    options.n_seq_max = n_seq_max
    options.n_outputs = max_outputs
    options.tap = TAPS.index(tap)
    options.prefill = PREFILL_MODES.index(prefill)
    options.sample_on = DRAWS.index(draws)
    options.n_draft_vocab = draft_vocab_size(draft_vocab, model.n_vocab)
    options.adaptive_draft_vocab = draft_vocab == "auto"
    options.embeddings = bool(embeddings)
    options.trace = bool(trace)
    options.all_threads = bool(all_threads)
    return params, options


def whole_ctx(n_ctx: int) -> int:
    """Round n_ctx up to the number of cells that llama.cpp allocates for a sequence."""
    return -(-n_ctx // CTX_STEP) * CTX_STEP


def check_options(
    *,
    n_ctx: int = 0,
    n_batch: int = 2048,
    n_ubatch: int = 512,
    n_seq_max: int = 1,
    n_threads: int = 1,
    type_k: str = "f16",
    type_v: str = "f16",
    flash_attn: str = "auto",
    draft_tokens: int = 0,
    draft_vocab: int | str = "auto",
    tap: str = "auto",
    prefill: str = "fused",
    draws: str = "auto",
    offload_kqv: bool = True,
    all_threads: bool = False,
) -> None:
    """Check options without a model. Raises InvalidRequestError for values outside their range."""
    _one_of("tap", tap, (*TAPS, "auto"))
    _one_of("type_k", type_k, CACHE_TYPES)
    _one_of("type_v", type_v, CACHE_TYPES)
    read_int("n_ctx", n_ctx, 0)
    read_int("draft_tokens", draft_tokens, 0, MAX_DRAFTS)
    check_draft_vocab(draft_vocab)
    read_int("n_seq_max", n_seq_max, 1, MAX_SEQ)
    read_int("n_threads", n_threads, 1, MAX_THREADS)
    _one_of("prefill", prefill, PREFILL_MODES)
    _one_of("draws", draws, DRAWS)
    _one_of("flash_attn", flash_attn, FLASH_ATTN)
    # all rows of a verification must be in one ubatch, so that recurrent layers can be rewound to any of these rows
    min_batch = max(1 + int(draft_tokens), int(n_seq_max))
    read_int("n_batch", n_batch, min_batch)
    read_int("n_ubatch", n_ubatch, min_batch)
    if type_v not in ("f16", "f32", "bf16") and flash_attn == "off":
        raise InvalidRequestError(f'type_v="{type_v}" needs flash attention: flash_attn="auto" or "on"')
    read_bool("offload_kqv", offload_kqv)
    read_bool("all_threads", all_threads)
    _check_tap(draft_tokens, prefill, tap)
    _check_cells(int(n_ctx), int(n_seq_max))


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Check those keywords of an LLM that are options of its context, without a model.

    Raises InvalidRequestError for values outside their range.
    """
    given = {name: keywords[name] for name in signature(check_options).parameters.keys() & keywords.keys()}
    if isinstance(drafts := given.get("draft_tokens"), str):
        if drafts != "auto":
            raise InvalidRequestError(f'draft_tokens={shown(drafts)} must be a whole number or "auto"', "draft_tokens")
        del given["draft_tokens"]
    if given.get("n_threads", 0) is None:
        del given["n_threads"]
    check_options(**given)


def check_draft_vocab(value: int | str) -> None:
    """Raise InvalidRequestError for a value that draft_vocab cannot have."""
    if isinstance(value, str) and value in ("auto", "all"):
        return
    if not is_whole(value, 1):
        raise InvalidRequestError(
            f'draft_vocab={shown(value)} must be a number of tokens, 1 or more, "auto" or "all"', "draft_vocab"
        )


def draft_vocab_size(value: int | str, n_vocab: int) -> int:
    """Return the number of tokens that a value of draft_vocab stands for, 0 for all tokens.

    "auto" stands for all tokens if the vocabulary has fewer than 2 * AUTO_DRAFT_VOCAB tokens.
    """
    if value == "auto":
        return AUTO_DRAFT_VOCAB if n_vocab >= 2 * AUTO_DRAFT_VOCAB else 0
    return 0 if isinstance(value, str) or value >= n_vocab else int(value)


def _check_cells(n_ctx: int, n_seq_max: int) -> None:
    if whole_ctx(n_ctx) * n_seq_max > MAX_CELLS:
        raise InvalidRequestError(
            f"n_ctx={n_ctx} tokens in each of n_seq_max={n_seq_max} sequences are more than {MAX_CELLS} in all"
        )


def _check_tap(draft_tokens: int, prefill: str, tap: str) -> None:
    if draft_tokens and prefill == "all-outputs" and tap == "pre_norm":
        raise InvalidRequestError(
            'prefill="all-outputs" reads post-norm embeddings: it cannot be used with tap="pre_norm"'
        )


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidRequestError(f"{name}={shown(value)} is not known, use one of {', '.join(known)}", name)
