"""A target and a draft context of one model: prefill, draft, verify, rewind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pymtp.context.host_memory import check_room
from pymtp.context.options import native_options
from pymtp.context.state import Saving
from pymtp.drafting.depth import watch_quotas
from pymtp.errors import InvalidRequestError, NativeError, PymtpError
from pymtp.model.model import TAPS, Model
from pymtp.model.rope import RopeOptions
from pymtp.native import check, ends_before_exit, ffi, last_error, lib
from pymtp.native.batch_results import Outcomes, only, read_logprobs
from pymtp.native.cores import default_threads
from pymtp.native.locking import alone
from pymtp.sampling import Logits, Sampler, TokenLogprobs


class Context(Saving):
    """Sequences in the caches of a target context and, with drafts, of the head's draft context.

    The target holds `n_past(seq)` tokens of a sequence. `draft` is called with the token that comes next and then with
    each draft it led to; `verify` takes that token and the drafts; `rewind` takes back the drafts that were not
    accepted. Sequences do not see each other; where none is named, it is sequence 0.

    Calls from several threads take turns. Ctrl-C, as each exception of a signal handler, ends the call that runs on the
    main thread and empties its sequences; the next call works. All methods raise ClosedError after close().
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        n_threads: int | None = None,
        all_threads: bool = False,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: str = "auto",
        draft_tokens: int = 0,
        tap: str = "auto",
        prefill: str = "fused",
        draws: str = "auto",
        draft_vocab: int | Literal["auto", "all"] = "auto",
        offload_kqv: bool = True,
        rope: RopeOptions | None = None,
        max_outputs: int = 1,
        embeddings: bool = False,
        trace: bool = False,
    ) -> None:
        """
        n_ctx: tokens that fit in a sequence, rounded up to a multiple of 256; 0 takes the length of the training.
        n_batch, n_ubatch: tokens of a prompt handed over at once, and computed at once: the latter no more than the
            former, and both are at least 1 + draft_tokens.
        n_seq_max: sequences that can be held at a time.
        n_threads: the most threads that compute. None for one each fast core, as far as a container may use them.
        all_threads: as many compute always, also where fewer are faster: beside other work, and for small graphs.
        type_k, type_v: types of the K and V cache, one of CACHE_TYPES. A quantized V needs flash attention.
        draft_tokens: the most drafts a round; 0 for no draft context.
        tap: the hidden state that the head takes: "post_norm", "pre_norm", or "auto" for what the model wants.
        prefill: one of PREFILL_MODES. "fused": the target's graph fills the head's cache. For comparison,
            "host-copy" takes hidden states through the host and the whole block, as llama.cpp does; "all-outputs"
            makes every token an output with embeddings, with the post-norm tap only.
        draws: one of DRAWS; the tokens are the same. "device" picks greedy tokens where the logits are, and brings the
            candidates of a top_k of up to 128 to the host; rows of logits come for bias, penalties, grammars, logprobs
            and a larger top_k. "host" draws from rows. "auto": "device" on CUDA and Vulkan.
        draft_vocab: how many tokens drafts are made over, rounded up to a multiple of 64, at least 128, or "all". The
            set follows the text, which stays the same. "auto": 32,768, or all of less than twice that. Needs "fused".
        offload_kqv: K and V, and attention, are on the GPU where their layers are; False: in the host's memory.
        rope: how positions are rotated, None for what the model's file says.
        max_outputs: the most rows of logits computed at once where `prefill_logits` asks for all.
        embeddings: keep the embeddings of prompts, see `embeddings`; every token becomes an output.
        trace: record what is computed, see `trace`. Slower.

        Raises InvalidRequestError for values outside their range, and where K, V and states do not fit in the
        host's memory; NativeError when llama.cpp cannot make the contexts.
        """
        super().__init__()
        params, options = native_options(
            model,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_seq_max=n_seq_max,
            n_threads=default_threads() if n_threads is None else n_threads,
            type_k=type_k,
            type_v=type_v,
            flash_attn=flash_attn,
            draft_tokens=draft_tokens,
            tap=tap,
            prefill=prefill,
            draws=draws,
            draft_vocab=draft_vocab,
            offload_kqv=offload_kqv,
            rope=rope,
            max_outputs=max_outputs,
            embeddings=embeddings,
            trace=trace,
            all_threads=all_threads,
        )
        check_room(model, params, options)
        watch_quotas()
        ends_before_exit(self._lock)
        with self._lock:
            pair = lib.pymtp_pair_init(model.handle, params, options)
        if pair == ffi.NULL:
            raise NativeError(last_error())
        # Its only reference but for calls that are in it, cancel() among them: the last that goes frees it.
        self._pair = ffi.gc(pair, lib.pymtp_pair_free)
        check(lib.PYMTP_OK)
        self._logits = ffi.new("const float **")
        self._token = ffi.new("int32_t *")
        self._outcomes = Outcomes(options.n_seq_max, 1 + options.n_draft)
        self._n_vocab = model.n_vocab
        self._n_embeddings = 0
        self._keeps_embeddings = embeddings
        self.model = model
        self.rope = rope or RopeOptions()
        self.tap = TAPS[options.tap]
        self.draft_tokens: int = options.n_draft
        self.n_seq_max = options.n_seq_max
        self.n_ctx = lib.pymtp_pair_n_ctx(pair)
        self.n_ubatch = min(int(n_batch), int(n_ubatch))
        self.cancels = 0  # how often `cancel` was called so far
        self._cancel_numbers = count(1)
        self._cancelled = False
        self._reports: set[int] = set()  # sequences whose sampling asks for logprobs
        self._logprobs: dict[int, list[TokenLogprobs]] = {}

    @property
    def n_past(self) -> int:
        """Tokens that the target holds of sequence 0."""
        return self.tokens_held()

    @property
    def n_head(self) -> int:
        """Rows that the head's cache holds of sequence 0, made from the target's hidden states."""
        return self.rows_held()

    @alone
    def tokens_held(self, seq: int = 0) -> int:
        """Tokens that the target holds. Raises InvalidRequestError when there is no such sequence."""
        self._check_seq(seq)
        return int(lib.pymtp_pair_n_past(self._pair, seq))

    @alone
    def tokens(self, seq: int = 0) -> list[int]:
        """The tokens that the target holds, in order."""
        self._check_seq(seq)
        n = lib.pymtp_pair_n_past(self._pair, seq)
        return list(ffi.unpack(lib.pymtp_pair_tokens(self._pair, seq), n)) if n else []

    @alone
    def rows_held(self, seq: int = 0) -> int:
        """Rows that the head's cache holds, made from the target's hidden states; as `tokens_held`. It is behind by
        up to 63 after rounds without drafts, and takes these before the next draft."""
        self._check_seq(seq)
        return int(lib.pymtp_pair_n_head(self._pair, seq))

    def _rows(self, n: int) -> Logits:
        return _floats(self._logits[0], n, self._n_vocab)

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> Logits:
        """Takes a prompt, or more of it, through target and head. Returns the last token's logits, shape (n_vocab,).

        Raises ContextFullError when it does not fit and InvalidRequestError for a token id outside the vocabulary: then
        nothing is changed. Raises CancelledError, or what a signal handler raised, with the sequence emptied.
        """
        return self.prefill_batch({seq: tokens}).reshape(-1)

    def prefill_batch(self, prompts: Mapping[int, Sequence[int]]) -> Logits:
        """Takes a prompt, or more of it, for each sequence named, together. Returns the logits of their last tokens,
        shape (len(prompts), n_vocab), by rising number of the sequence. Raises as `prefill`."""
        return self._prefill(prompts, all_logits=False)

    def prefill_logits(self, tokens: Sequence[int], seq: int = 0) -> Logits:
        """As `prefill`, and returns the logits of every token, shape (len(tokens), n_vocab), for twice as many bytes of
        host memory. They are computed max_outputs rows at a time: give the context enough of them."""
        return self._prefill({seq: tokens}, all_logits=True)

    @alone
    def _prefill(self, prompts: Mapping[int, Sequence[int]], *, all_logits: bool) -> Logits:
        seqs = sorted(prompts)
        for seq in seqs:
            self._check_seq(seq)
        tokens = ffi.new("llama_token[]", [token for seq in seqs for token in prompts[seq]])
        lengths = [len(prompts[seq]) for seq in seqs]
        self._n_embeddings = 0  # those of the last prefill go, whatever comes of this one
        check(lib.pymtp_pair_prefill(self._pair, len(seqs), seqs, tokens, lengths, all_logits, self._logits))
        self._n_embeddings = sum(lengths)
        return self._rows(sum(lengths) if all_logits else len(seqs))

    @alone
    def embeddings(self) -> NDArray[np.float32]:
        """The embeddings (final, normed hidden states) of the tokens of the last prefill, shape (tokens, n_embd),
        sorted by sequence. Raises InvalidRequestError unless the context was made with embeddings=True."""
        if not self._keeps_embeddings:
            raise InvalidRequestError("the context keeps no embeddings: make it with embeddings=True")
        return _floats(lib.pymtp_pair_embeddings(self._pair), self._n_embeddings, self.model.n_embd)

    @alone
    def draft(self, token: int, seq: int = 0) -> Logits:
        """One step of the head: logits, shape (n_vocab,), for the token after `token`.

        token: the token after the last that the target holds; then, step by step, each draft made from it. Raises
        InvalidRequestError past `draft_tokens` steps, ContextFullError at the end of the context.
        """
        check(lib.pymtp_pair_draft_step(self._pair, seq, token, self._logits))
        return self._rows(1).reshape(-1)

    @alone
    def verify(self, tokens: Sequence[int], seq: int = 0) -> Logits:
        """Takes 1 to 1+draft_tokens tokens through the target: logits after each, shape (len(tokens), n_vocab)."""
        array = ffi.new("llama_token[]", list(tokens))  # of a number, cffi would make so many tokens
        check(lib.pymtp_pair_verify(self._pair, seq, array, len(tokens), self._logits))
        return self._rows(len(tokens))

    @alone
    def set_sampling(self, sampler: Sampler, seq: int = 0) -> None:
        """How tokens are drawn from now on, for the three calls below. A grammar's text begins with the first token.
        Raises InvalidRequestError for a logit bias on a token that is not in the vocabulary, for one that forbids all
        tokens, and for a grammar that is refused."""
        if not isinstance(sampler, Sampler):
            raise InvalidRequestError(f"sampler must be a Sampler, not {type(sampler).__name__}")
        bias = sampler.params.logit_bias
        self.model.check_tokens(list(bias))
        if list(bias.values()).count(-math.inf) == self._n_vocab:
            raise InvalidRequestError("no token is allowed: logit_bias forbids the whole vocabulary")
        with sampler.compiled(self.model) as native:
            check(lib.pymtp_pair_set_sampling(self._pair, seq, native))
        self._logprobs.pop(seq, None)
        (self._reports.discard if sampler.params.logprobs is None else self._reports.add)(seq)

    @alone
    def first_token(self, seq: int = 0) -> int:
        """The token after a prompt, sampled from the logits of the last prefill. Raises InvalidRequestError when the
        grammar allows none; the sequence keeps the tokens before it."""
        check(lib.pymtp_pair_first_token(self._pair, seq, self._token))
        self._keep_logprobs(seq, 1)
        return int(self._token[0])

    def draft_chain(self, token: int, n: int, seq: int = 0) -> tuple[list[int], list[float]]:
        """n draft steps, each from the token drawn in the one before, the first from `token`, which follows the last
        that the target holds: the drafts, and the head's probability of each. Fewer where the head's logits are no
        finite numbers: a chain ends there. Raises as `draft`."""
        return self.draft_chains({seq: token}, n)[seq]

    @alone
    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        """As `draft_chain`, for each sequence named: its token. Sequences side by side take one launch."""
        seqs, out = sorted(tokens), self._outcomes
        first = [tokens[seq] for seq in seqs]
        check(
            lib.pymtp_pair_draft_tokens(self._pair, len(seqs), seqs, first, n, out.tokens, out.confidences, out.native)
        )
        return out.drafts(seqs, n)

    @property
    @alone
    def draft_vocab(self) -> int:
        """How many tokens drafts are made over. "auto" goes to all while too much of the text is new to the set."""
        return int(lib.pymtp_pair_draft_vocab_size(self._pair))

    @alone
    def drafts_over(self, token: int) -> bool:
        """Whether `token` is one of those that the last `draft_chain` made drafts over."""
        return bool(lib.pymtp_pair_in_draft_vocab(self._pair, token))

    @alone
    def forget_chosen(self) -> None:
        """What the target chose so far no longer counts for whether "auto" drafts over the set or over all."""
        lib.pymtp_pair_reset_draft_vocab(self._pair)

    def verify_chain(self, tokens: Sequence[int], seq: int = 0) -> list[int]:
        """As `verify`, and draws the token after each row until one is not what the next row holds: the drafts that the
        target agrees with, and one more; fewer where a grammar allows no token after them. Raises as `first_token`, so
        where there is none."""
        return only(self.verify_chains({seq: tokens}))

    @alone
    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]:
        """As `verify_chain`, for each sequence named: its tokens. Sequences side by side take one launch, in which each
        has as many rows as the longest chain: there must be room for them. Rows of padding are not sampled from, and
        not held when this returns. A sequence that fails by itself has its error as its value, and the others their
        tokens. What is raised emptied all."""
        seqs, out = sorted(chains), self._outcomes
        lengths = [len(chains[seq]) for seq in seqs]
        tokens = [token for seq in seqs for token in chains[seq]]
        check(lib.pymtp_pair_verify_tokens(self._pair, len(seqs), seqs, tokens, lengths, out.tokens, out.native))
        if self._reports:
            for k, seq in enumerate(seqs):
                self._keep_logprobs(seq, out.native[k].n)  # before a dead end, too
        return out.sampled(seqs, lengths)

    def logprobs(self, seq: int = 0) -> list[TokenLogprobs]:
        """Of the tokens that the sequence's last `first_token` or verification returned; empty unless its sampling
        asks."""
        return self._logprobs.get(seq, [])

    def _keep_logprobs(self, seq: int, n_sampled: int) -> None:
        if seq not in self._reports:
            return
        pairs = read_logprobs(self._pair, seq) if n_sampled else []
        each = max(1, len(pairs) // max(1, n_sampled))
        starts = range(0, len(pairs), each)
        self._logprobs[seq] = [TokenLogprobs(*pairs[i], tuple(pairs[i + 1 : i + each])) for i in starts]

    @alone
    def rewind(self, n_keep: int, seq: int = 0) -> None:
        """Goes back to the first `n_keep` tokens: only drafts of the last verification can be taken back.

        No state is copied: the recurrent layers count fewer tokens to replay. Raises InvalidRequestError otherwise.
        """
        check(lib.pymtp_pair_rewind(self._pair, seq, n_keep))

    @alone
    def copy(self, source: int, seq: int) -> None:
        """Makes an empty sequence hold what `source` does: it goes on as `source` would, from `first_token` too. Its
        sampling stays its own, for which the text is a prompt. K and V of the tokens held are copied, and the states;
        nothing is computed. What was drafted is forgotten, and the copy cannot be rewound.

        Raises InvalidRequestError when `seq` is not empty, CancelledError and NativeError with `seq` emptied;
        `source` holds what it held.
        """
        check(lib.pymtp_pair_copy(self._pair, source, seq))

    @alone
    def move(self, source: int, seq: int) -> None:
        """As `copy`, and the sampling goes along; `source` is empty then."""
        check(lib.pymtp_pair_move(self._pair, source, seq))
        (self._reports.add if source in self._reports else self._reports.discard)(seq)
        self._logprobs.pop(seq, None)
        if source in self._logprobs:
            self._logprobs[seq] = self._logprobs.pop(source)

    @alone
    def clear(self, seq: int | None = None) -> None:
        """Empties the caches, or what they hold of one sequence."""
        for number in range(self.n_seq_max) if seq is None else [seq]:
            check(lib.pymtp_pair_clear(self._pair, number))

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` is set."""
        return self._cancelled

    def cancel(self, cancelled: bool = True) -> None:
        """From any thread and any handler, at any time: while set, native calls end with CancelledError, within a
        ubatch, with their sequences emptied. It stays set until cancel(False). No more than a note after close()."""
        if cancelled:
            self.cancels = next(self._cancel_numbers)
        else:
            self._cancelled = False
        pair = self._pair  # a close() meanwhile frees nothing under this reference
        if pair is not None:
            lib.pymtp_pair_cancel(pair, cancelled)
        # last, and above first: of threads that set and unset it at once, none leaves it set where nobody can tell
        if cancelled:
            self._cancelled = True

    def _free(self) -> None:
        self._pair = None

    @alone
    def break_on_purpose(self, fault: str) -> None:
        """Makes one of the mistakes of enum pymtp_fault from now on, "none" ends it. For tests: greedy text does not
        show them, acceptance and the head's logits must."""
        lib.pymtp_pair_inject_fault(self._pair, getattr(lib, f"PYMTP_FAULT_{fault.upper()}"))

    @alone
    def compute_as_devices(self) -> None:
        """From now on, recurrent layers in the host's memory are computed as those of a GPU are. For tests."""
        check(lib.pymtp_pair_force_device_ops(self._pair, True))

    @alone
    def head_state(self, seq: int = 0) -> bytes:
        """What the head's cache holds of a sequence, as llama.cpp saves it: positions, then rows of K, then of V.
        Empty without drafts."""
        self._check_seq(seq)
        needed = ffi.new("size_t *")
        check(lib.pymtp_pair_head_state(self._pair, seq, ffi.NULL, 0, needed))
        data = ffi.new("uint8_t[]", needed[0])
        check(lib.pymtp_pair_head_state(self._pair, seq, data, needed[0], needed))
        return bytes(ffi.buffer(data))


def _floats(pointer: Any, rows: int, columns: int) -> NDArray[np.float32]:
    if rows == 0:
        return np.empty((0, columns), dtype=np.float32)
    native = np.frombuffer(ffi.buffer(pointer, rows * columns * 4), dtype=np.float32)
    return native.reshape(rows, columns).copy()  # the next call, and close(), end what is there
