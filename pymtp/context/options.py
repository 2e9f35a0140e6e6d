"""Options of a context: one frozen object, which checks its values when it is made, and fills llama.cpp's structs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from pymtp.drafting.depth import MAX_AUTO
from pymtp.errors import InvalidRequestError
from pymtp.model.model import TAPS, Model
from pymtp.model.rope import RopeOptions
from pymtp.native import ffi, lib
from pymtp.native.cores import MAX_THREADS, default_threads
from pymtp.sampling import MAX_DRAFTS
from pymtp.validation import is_whole, read_bool, read_int, shown

CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
FLASH_ATTN = ("auto", "on", "off")
DRAWS = ("auto", "host", "device")  # in the order of enum pymtp_sample_on
# With draft_vocab="auto", drafts are chosen from this many of Qwen's 248,320 tokens, at first those of the earliest
# merges: see docs/explanation/draft-vocabulary.md.
AUTO_DRAFT_VOCAB = 32768
PREFILL_MODES = ("fused", "host-copy", "all-outputs")  # in the order of enum pymtp_prefill_mode
MAX_TEXT = 63  # the largest number of drafts from text in a round
AUTO_TEXT = 31  # the same with draft_text="auto": on a CPU, 63 rows yield hardly more tokens per second than 31
CTX_STEP = 256  # llama.cpp rounds n_ctx up to a multiple of this
MAX_CTX = 2**24  # tokens of a sequence: 16 times what models are trained for, and planned within seconds
MAX_CELLS = 2**31 - CTX_STEP  # for all sequences together: llama.cpp counts cells in 32 bits
MAX_SEQ = 256  # LLAMA_MAX_SEQ


@dataclass(frozen=True, kw_only=True)
class ContextOptions(RopeOptions):
    """Options of a context: keywords of Context and of LLM.

    n_ctx: tokens per sequence, rounded up to a multiple of 256; 0 takes the training length.
    n_batch, n_ubatch: the largest number of prompt tokens in a decode, and of tokens in one computed graph.
        n_ubatch is at most n_batch, and both are at least 1 + draft_tokens and 1 + draft_text.
    n_seq_max: sequences that run at once. Each takes the memory of n_ctx tokens and of its recurrent states.
    n_threads: the largest number of computing threads. None for one per fast core, within a container's limit.
    all_threads: always compute with n_threads threads. If False, fewer threads compute where that is faster: while
        other programs use the cores, and for small graphs.
    type_k, type_v: types of the K cache and of the V cache, each one of CACHE_TYPES. A quantized V needs flash
        attention.
    flash_attn: whether attention is computed in one operation, one of FLASH_ATTN.
    draft_tokens: the largest number of drafts per round; 0 for no draft context. "auto" for the largest number that
        an LLM chooses by itself: 7, or fewer where n_batch or n_ubatch is less than 8, and 0 without a head.
    draft_text: the largest number of drafts per round that come from the text so far, at most 63; 0 for none. Rounds
        use 1 to 7, 15, 31 or 63 of them. "auto": with draft_tokens="auto" 31, or 15 with more than four sequences,
        otherwise 0; fewer where n_batch or n_ubatch is less than 32. More of them take more memory: the recurrent
        layers keep the inputs of each.
    draft_vocab: the number of tokens that the head's drafts are chosen from, rounded up to a multiple of 64, at least
        128; or "all". These tokens change with the text, which does not depend on them. "auto": 32,768 tokens, or all
        tokens of a vocabulary of less than twice that size. It has an effect only with prefill="fused".
    tap: the hidden state that the head reads: "post_norm", "pre_norm", or "auto" for the tap of the model.
    prefill: how hidden states of prompts reach the head, one of PREFILL_MODES. "fused": the target's graph fills
        the head's cache. The other two are for comparison. "host-copy": hidden states are copied to the host, and
        the head's whole block computes them, as in llama.cpp. "all-outputs": every token is an output with
        embeddings; this needs the post-norm tap.
    draws: where tokens are sampled, one of DRAWS; the sampled tokens are the same. "device": greedy tokens are
        picked on the device of the logits, and for a top_k of up to 128 only the candidates are copied to the
        host. For a logit bias, penalties, grammars, logprobs and a larger top_k, whole rows of logits are copied.
        "host": tokens are sampled from whole rows. "auto": "device" on CUDA and Vulkan, otherwise "host".
    offload_kqv: keep K and V on the GPU of each layer, and compute attention there. False: keep them in the host's
        memory.

    Raises InvalidRequestError for values outside their range.
    """

    n_ctx: int = 8192
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_threads: int | None = None
    all_threads: bool = False
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    draft_tokens: int | Literal["auto"] = 0
    draft_text: int | Literal["auto"] = 0
    draft_vocab: int | Literal["auto", "all"] = "auto"
    tap: str = "auto"
    prefill: str = "fused"
    draws: str = "auto"
    offload_kqv: bool = True

    def __post_init__(self) -> None:
        RopeOptions.__post_init__(self)
        for name, known in (
            ("tap", (*TAPS, "auto")),
            ("type_k", CACHE_TYPES),
            ("type_v", CACHE_TYPES),
            ("prefill", PREFILL_MODES),
            ("draws", DRAWS),
            ("flash_attn", FLASH_ATTN),
        ):
            _check_word(name, getattr(self, name), known)
        self._read_int("n_ctx", 0)
        if not isinstance(self.draft_tokens, str):
            self._read_int("draft_tokens", 0, MAX_DRAFTS)
        elif self.draft_tokens != "auto":
            raise InvalidRequestError(
                f'draft_tokens={shown(self.draft_tokens)} must be a whole number or "auto"', "draft_tokens"
            )
        if not isinstance(self.draft_text, str):
            self._read_int("draft_text", 0, MAX_TEXT)
        elif self.draft_text != "auto":
            raise InvalidRequestError(
                f'draft_text={shown(self.draft_text)} must be a whole number or "auto"', "draft_text"
            )
        if not (isinstance(self.draft_vocab, str) and self.draft_vocab in ("auto", "all")):
            if not is_whole(self.draft_vocab, 1):
                raise InvalidRequestError(
                    f'draft_vocab={shown(self.draft_vocab)} must be a number of tokens, 1 or more, "auto" or "all"',
                    "draft_vocab",
                )
            object.__setattr__(self, "draft_vocab", int(self.draft_vocab))
        self._read_int("n_seq_max", 1, MAX_SEQ)
        if self.n_threads is not None:
            self._read_int("n_threads", 1, MAX_THREADS)
        drafts = 0 if isinstance(self.draft_tokens, str) else self.draft_tokens
        by_text = 0 if isinstance(self.draft_text, str) else self.draft_text
        # all rows of a verification must be in one ubatch, so that recurrent layers can be rewound to any of these rows
        for name in ("n_batch", "n_ubatch"):
            self._read_int(name, 1)
            for other, least in (
                ("n_seq_max", self.n_seq_max),
                ("draft_tokens", 1 + drafts),
                ("draft_text", 1 + by_text),
            ):
                if getattr(self, name) < least:
                    raise InvalidRequestError(
                        f"{name}={getattr(self, name)} must be {least} or more with {other}={getattr(self, other)}",
                        name,
                    )
        if self.type_v not in ("f16", "f32", "bf16") and self.flash_attn == "off":
            raise InvalidRequestError(f'type_v="{self.type_v}" needs flash attention: flash_attn="auto" or "on"')
        for name in ("offload_kqv", "all_threads"):
            object.__setattr__(self, name, read_bool(name, getattr(self, name)))
        _check_tap(drafts, self.prefill, self.tap)
        _check_cells(self.n_ctx, self.n_seq_max)

    def _read_int(self, name: str, low: int, high: int = 2**31 - 1) -> None:
        object.__setattr__(self, name, read_int(name, getattr(self, name), low, high))

    @property
    def threads(self) -> int:
        """Return n_threads as a number."""
        return default_threads() if self.n_threads is None else self.n_threads

    def max_drafts(self, *, mtp: bool) -> int:
        """Return the largest number of drafts per round. mtp: whether the head is loaded, which "auto" depends on."""
        if not isinstance(self.draft_tokens, str):
            return self.draft_tokens
        return max(0, min(MAX_AUTO, self.n_batch - 1, self.n_ubatch - 1)) if mtp else 0

    @property
    def max_text(self) -> int:
        """Return the largest number of drafts per round that come from the text."""
        if not isinstance(self.draft_text, str):
            return self.draft_text
        if self.draft_tokens != "auto":
            return 0
        return max(0, min(AUTO_TEXT if self.n_seq_max <= 4 else AUTO_TEXT // 2, self.n_batch - 1, self.n_ubatch - 1))

    def timing_key(self, *, drafts: int) -> tuple[tuple[str, object], ...]:
        """Return the names and values of the options that the time of a round depends on. drafts: as max_drafts."""
        values = {field.name: getattr(self, field.name) for field in fields(ContextOptions)}
        values |= {"draft_tokens": drafts, "n_threads": self.threads}
        return tuple((name, value) for name, value in values.items() if name not in ("n_ctx", "n_batch", "n_ubatch"))

    def context_params(
        self, model: Model, *, max_outputs: int = 1, embeddings: bool = False, trace: bool = False
    ) -> tuple[Any, Any]:
        """Return the C structs `llama_context_params` and `pymtp_pair_options` of the options.

        model: only the metadata of its file is read. max_outputs, embeddings, trace: as for Context.

        Raises InvalidRequestError for options that do not go with the model.
        """
        drafts = self.max_drafts(mtp=model.mtp)
        tap = model.tap if self.tap == "auto" else self.tap
        if drafts and not model.mtp:
            raise InvalidRequestError(
                f"draft_tokens={drafts} needs a multi-token-prediction head, and {model.path.name} "
                + (
                    "was loaded without it"
                    if model.has_head or model.options.head
                    else "has none: use draft_tokens=0, or head=FILE for one in a file of its own"
                )
                + (f" ({model.head_absent})" if model.head_absent else "")
            )
        _check_tap(drafts, self.prefill, tap)
        n_ctx = self.n_ctx or model.n_ctx_train
        _check_cells(n_ctx, self.n_seq_max)
        params = lib.llama_context_default_params()
        # rounded here, since llama.cpp limits the batch by n_ctx before it rounds n_ctx up
        params.n_ctx = whole_ctx(n_ctx) * self.n_seq_max
        params.n_batch = self.n_batch
        params.n_ubatch = self.n_ubatch
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = getattr(lib, f"GGML_TYPE_{self.type_k.upper()}")
        params.type_v = getattr(lib, f"GGML_TYPE_{self.type_v.upper()}")
        params.flash_attn_type = {
            "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
            "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }[self.flash_attn]
        params.offload_kqv = self.offload_kqv
        self.write_rope(params)
        options = ffi.new("struct pymtp_pair_options *")
        options.n_draft = drafts
        options.n_text = self.max_text
        options.n_seq_max = self.n_seq_max
        options.n_outputs = read_int("max_outputs", max_outputs, 1)
        options.tap = TAPS.index(tap)
        options.prefill = PREFILL_MODES.index(self.prefill)
        options.sample_on = DRAWS.index(self.draws)
        options.n_draft_vocab = draft_vocab_size(self.draft_vocab, model.n_vocab)
        options.adaptive_draft_vocab = self.draft_vocab == "auto"
        options.embeddings = bool(embeddings)
        options.trace = bool(trace)
        options.all_threads = self.all_threads
        return params, options


def whole_ctx(n_ctx: int) -> int:
    """Round n_ctx up to the number of cells that llama.cpp allocates for a sequence."""
    return -(-n_ctx // CTX_STEP) * CTX_STEP


def draft_vocab_size(value: int | str, n_vocab: int) -> int:
    """Return the number of tokens that a value of draft_vocab stands for, 0 for all tokens.

    "auto" stands for all tokens if the vocabulary has fewer than 2 * AUTO_DRAFT_VOCAB tokens.
    """
    if value == "auto":
        return AUTO_DRAFT_VOCAB if n_vocab >= 2 * AUTO_DRAFT_VOCAB else 0
    return 0 if isinstance(value, str) or value >= n_vocab else value


def _check_cells(n_ctx: int, n_seq_max: int) -> None:
    if whole_ctx(n_ctx) * n_seq_max > MAX_CELLS:
        raise InvalidRequestError(
            f"n_ctx={n_ctx} tokens in each of n_seq_max={n_seq_max} sequences are more than {MAX_CELLS} in all"
        )
    if n_ctx > MAX_CTX:
        raise InvalidRequestError(f"n_ctx={n_ctx} must be at most {MAX_CTX}")


def _check_tap(draft_tokens: int, prefill: str, tap: str) -> None:
    if draft_tokens and prefill == "all-outputs" and tap == "pre_norm":
        raise InvalidRequestError(
            'prefill="all-outputs" reads post-norm embeddings: it cannot be used with tap="pre_norm"'
        )


def _check_word(name: str, value: str, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidRequestError(f"{name}={shown(value)} is not known, use one of {', '.join(known)}", name)
