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
    """A target context and, with drafts, the head's draft context. The caches of both hold the same sequences.

    The target holds `tokens_held(seq)` tokens of a sequence. `draft` is called with the token after these, then with
    each draft that was chosen from the logits of the last call; `verify` takes the same token and the drafts; `rewind`
    removes the drafts that were not accepted. Sequences are independent; the default is sequence 0.

    Calls from several threads run one after the other. Ctrl-C, or any exception that a handler raises, ends the call on
    the main thread. The sequences of that call are then empty, and the next call works. All methods raise ClosedError
    after close().
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
        """Allocate the caches, and the draft context where there are drafts.

        n_ctx: tokens per sequence, rounded up to a multiple of 256; 0 takes the training length.
        n_batch, n_ubatch: the largest number of prompt tokens in a decode, and of tokens in one computed graph.
            n_ubatch is at most n_batch, and both are at least 1 + draft_tokens.
        n_seq_max: number of sequences.
        n_threads: the largest number of computing threads. None for one per fast core, within a container's limit.
        all_threads: always compute with n_threads threads. If False, fewer threads compute where that is faster: while
            other programs use the cores, and for small graphs.
        type_k, type_v: types of the K cache and of the V cache, each one of CACHE_TYPES. A quantized V needs flash
            attention.
        draft_tokens: the largest number of drafts per round; 0 for no draft context.
        tap: the hidden state that the head reads: "post_norm", "pre_norm", or "auto" for the tap of `model`.
        prefill: how hidden states of prompts reach the head, one of PREFILL_MODES. "fused": the target's graph fills
            the head's cache. The other two are for comparison. "host-copy": hidden states are copied to the host, and
            the head's whole block computes them, as in llama.cpp. "all-outputs": every token is an output with
            embeddings; this needs the post-norm tap.
        draws: where tokens are sampled, one of DRAWS; the sampled tokens are the same. "device": greedy tokens are
            picked on the device of the logits, and for a top_k of up to 128 only the candidates are copied to the
            host. For a logit bias, penalties, grammars, logprobs and a larger top_k, whole rows of logits are copied.
            "host": tokens are sampled from whole rows. "auto": "device" on CUDA and Vulkan, otherwise "host".
        draft_vocab: the number of tokens that drafts are chosen from, rounded up to a multiple of 64, at least 128; or
            "all". These tokens change with the text; the text does not depend on them. "auto": 32,768 tokens, or all
            tokens of a vocabulary of less than twice that size. It has an effect only with prefill="fused".
        offload_kqv: keep K and V on the GPU of each layer, and compute attention there. False: keep them in the host's
            memory.
        rope: rotary position embeddings; None for those of the model's file.
        max_outputs: the largest number of logit rows that `prefill_logits` computes at once.
        embeddings: keep the embeddings of prompts for the method `embeddings`. Every prompt token is then an output.
        trace: record the computed nodes for the method `trace`. This makes calls slower.

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
        # A running call, also of cancel(), holds a reference of its own. The pair is freed with the last reference.
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
        self.cancels = 0  # number of calls of `cancel`
        self._cancel_numbers = count(1)
        self._cancelled = False
        self._reports: set[int] = set()  # sequences whose sampling asks for logprobs
        self._logprobs: dict[int, list[TokenLogprobs]] = {}

    @property
    def n_past(self) -> int:
        """Return the number of tokens that the target holds for sequence 0."""
        return self.tokens_held()

    @property
    def n_head_rows(self) -> int:
        """Return the number of rows that the head's cache holds for sequence 0, one per token; see `rows_held`."""
        return self.rows_held()

    @alone
    def tokens_held(self, seq: int = 0) -> int:
        """Return the number of tokens that the target holds for a sequence.

        Raises InvalidRequestError for an unknown sequence.
        """
        self._check_seq(seq)
        return int(lib.pymtp_pair_n_past(self._pair, seq))

    @alone
    def tokens(self, seq: int = 0) -> list[int]:
        """Return the tokens that the target holds for a sequence, in order."""
        self._check_seq(seq)
        n = lib.pymtp_pair_n_past(self._pair, seq)
        return list(ffi.unpack(lib.pymtp_pair_tokens(self._pair, seq), n)) if n else []

    @alone
    def rows_held(self, seq: int = 0) -> int:
        """Return the number of rows that the head's cache holds for a sequence.

        The head computes one row for each token, from the target's hidden state. In rounds without drafts it falls up
        to 63 rows behind the target; it catches up before the next draft. Raises as `tokens_held`.
        """
        self._check_seq(seq)
        return int(lib.pymtp_pair_n_head(self._pair, seq))

    def _rows(self, n: int) -> Logits:
        return _floats(self._logits[0], n, self._n_vocab)

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> Logits:
        """Compute a prompt, or the next part of a prompt, in the target and the head.

        Returns the logits of the last token, float32 of shape (n_vocab,).

        Raises ContextFullError when the tokens do not fit, and InvalidRequestError for a token id outside the
        vocabulary; in both cases nothing is changed. After CancelledError or KeyboardInterrupt, the
        sequence is empty.
        """
        return self.prefill_batch({seq: tokens}).reshape(-1)

    def prefill_batch(self, prompts: Mapping[int, Sequence[int]]) -> Logits:
        """Compute prompts, or the next parts of prompts, of several sequences together.

        prompts: the tokens to add to each sequence, by sequence number.

        Returns the logits of each sequence's last token, float32 of shape (len(prompts), n_vocab), in ascending order
        of the sequence numbers. Raises as `prefill`.
        """
        return self._prefill(prompts, all_logits=False)

    def prefill_logits(self, tokens: Sequence[int], seq: int = 0) -> Logits:
        """Compute a prompt as `prefill`, and return the logits of every token, shape (len(tokens), n_vocab).

        The call needs host memory of twice the size of the logits. It computes max_outputs rows at a time.
        """
        return self._prefill({seq: tokens}, all_logits=True)

    @alone
    def _prefill(self, prompts: Mapping[int, Sequence[int]], *, all_logits: bool) -> Logits:
        seqs = sorted(prompts)
        for seq in seqs:
            self._check_seq(seq)
        tokens = ffi.new("llama_token[]", [token for seq in seqs for token in prompts[seq]])
        lengths = [len(prompts[seq]) for seq in seqs]
        self._n_embeddings = 0  # the embeddings of the last prefill are lost, even if this one fails
        check(lib.pymtp_pair_prefill(self._pair, len(seqs), seqs, tokens, lengths, all_logits, self._logits))
        self._n_embeddings = sum(lengths)
        return self._rows(sum(lengths) if all_logits else len(seqs))

    @alone
    def embeddings(self) -> NDArray[np.float32]:
        """Return the embeddings of the last prefill's tokens: final, normed hidden states, shape (tokens, n_embd).

        The rows are in ascending order of the sequence numbers. Raises InvalidRequestError unless the context was made
        with embeddings=True.
        """
        if not self._keeps_embeddings:
            raise InvalidRequestError("the context keeps no embeddings: make it with embeddings=True")
        return _floats(lib.pymtp_pair_embeddings(self._pair), self._n_embeddings, self.model.n_embd)

    @alone
    def draft(self, token: int, seq: int = 0) -> Logits:
        """Run one step of the head, and return its logits for the token after `token`, shape (n_vocab,).

        token: in the first step, the token after the last one that the target holds; in each later step, the draft of
            the step before.

        Raises InvalidRequestError after `draft_tokens` steps, ContextFullError when the context is full.
        """
        check(lib.pymtp_pair_draft_step(self._pair, seq, token, self._logits))
        return self._rows(1).reshape(-1)

    @alone
    def verify(self, tokens: Sequence[int], seq: int = 0) -> Logits:
        """Decode 1 to 1+draft_tokens tokens with the target, and return the logits of each, (len(tokens), n_vocab)."""
        array = ffi.new("llama_token[]", list(tokens))  # list() refuses a number, which cffi would use as a length
        check(lib.pymtp_pair_verify(self._pair, seq, array, len(tokens), self._logits))
        return self._rows(len(tokens))

    @alone
    def set_sampling(self, sampler: Sampler, seq: int = 0) -> None:
        """Set how `first_token`, `draft_chain` and `verify_chain` sample from now on.

        A grammar applies to the text from the first token sampled afterwards. Raises InvalidRequestError for a logit
        bias on a token outside the vocabulary, for a logit bias that forbids all tokens, and for an invalid grammar.
        """
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
        """Sample the token after a prompt from the logits of the last prefill.

        Raises InvalidRequestError when the grammar allows no token; the sequence keeps its tokens.
        """
        check(lib.pymtp_pair_first_token(self._pair, seq, self._token))
        self._keep_logprobs(seq, 1)
        return int(self._token[0])

    def draft_chain(self, token: int, n: int, seq: int = 0) -> tuple[list[int], list[float]]:
        """Draft n tokens one after the other, and return the drafts and the head's probability of each draft.

        token: the token after the last one that the target holds.

        The chain ends early if the head's logits are not finite. Raises as `draft`.
        """
        return self.draft_chains({seq: token}, n)[seq]

    @alone
    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        """Draft n tokens for each of several sequences, as `draft_chain` does for one.

        Sequences with consecutive numbers share their decodes.

        tokens: the token after the last one that the target holds, by sequence number.
        """
        seqs, out = sorted(tokens), self._outcomes
        first = [tokens[seq] for seq in seqs]
        check(
            lib.pymtp_pair_draft_tokens(self._pair, len(seqs), seqs, first, n, out.tokens, out.confidences, out.native)
        )
        return out.drafts(seqs, n)

    @property
    @alone
    def draft_vocab(self) -> int:
        """Return the number of tokens that drafts are chosen from.

        With draft_vocab="auto", drafts are chosen from all tokens while too many of the text's tokens are missing in
        the draft vocabulary.
        """
        return int(lib.pymtp_pair_draft_vocab_size(self._pair))

    @alone
    def drafts_over(self, token: int) -> bool:
        """Return whether the last `draft_chain` could have drafted `token`."""
        return bool(lib.pymtp_pair_in_draft_vocab(self._pair, token))

    @alone
    def forget_chosen(self) -> None:
        """Forget how many of the target's tokens were outside the draft vocabulary.

        By this share, draft_vocab="auto" chooses between the draft vocabulary and all tokens.
        """
        lib.pymtp_pair_reset_draft_vocab(self._pair)

    def verify_chain(self, tokens: Sequence[int], seq: int = 0) -> list[int]:
        """Verify a token and its drafts, and return the accepted drafts and one more sampled token.

        A token is sampled from each row of logits in turn, until one differs from the next draft. The list is shorter
        if a grammar allows no further token. Raises as `verify`, and as `first_token` if the grammar allows no token
        after the first row.
        """
        return only(self.verify_chains({seq: tokens}))

    @alone
    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]:
        """Verify the tokens of each of several sequences, as `verify_chain` does for one.

        Sequences with consecutive numbers share a decode, in which each chain is padded to the length of the longest
        one; all these rows must fit into the context. Padding rows are neither sampled nor kept. If a single sequence
        fails, its value in the result is its error, and the other sequences have their tokens. If the call raises an
        exception, all its sequences are empty.
        """
        seqs, out = sorted(chains), self._outcomes
        lengths = [len(chains[seq]) for seq in seqs]
        tokens = [token for seq in seqs for token in chains[seq]]
        check(lib.pymtp_pair_verify_tokens(self._pair, len(seqs), seqs, tokens, lengths, out.tokens, out.native))
        if self._reports:
            for k, seq in enumerate(seqs):
                self._keep_logprobs(seq, out.native[k].n)  # also for tokens before a dead end
        return out.sampled(seqs, lengths)

    def logprobs(self, seq: int = 0) -> list[TokenLogprobs]:
        """Return the log-probabilities of the tokens of the last `first_token` or verification.

        The list is empty unless the sequence's sampling asks for logprobs.
        """
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
        """Keep the first n_keep tokens of a sequence and remove the others, which must be drafts.

        Only drafts of the last verification can be removed, and only before the next draft. No state is copied:
        instead, the recurrent layers replay fewer tokens in the next decode. Raises InvalidRequestError if other tokens
        would be removed.
        """
        check(lib.pymtp_pair_rewind(self._pair, seq, n_keep))

    @alone
    def copy(self, source: int, seq: int) -> None:
        """Copy a sequence into an empty one, which then continues as `source` would, also with `first_token`.

        K, V and states are copied; nothing is computed. The source's unverified drafts are discarded, and `seq` cannot
        be rewound. `seq` keeps its own sampling, which treats the copied tokens as a prompt.

        Raises InvalidRequestError when `seq` is not empty. After CancelledError and NativeError, `seq` is empty. The
        tokens of the source never change.
        """
        check(lib.pymtp_pair_copy(self._pair, source, seq))

    @alone
    def move(self, source: int, seq: int) -> None:
        """Move a sequence, with its sampling, into an empty one; `source` is empty afterwards. Raises as `copy`."""
        check(lib.pymtp_pair_move(self._pair, source, seq))
        (self._reports.add if source in self._reports else self._reports.discard)(seq)
        self._logprobs.pop(seq, None)
        if source in self._logprobs:
            self._logprobs[seq] = self._logprobs.pop(source)

    @alone
    def clear(self, seq: int | None = None) -> None:
        """Remove all tokens of one sequence, or of all sequences if `seq` is None."""
        for number in range(self.n_seq_max) if seq is None else [seq]:
            check(lib.pymtp_pair_clear(self._pair, number))

    @property
    def cancelled(self) -> bool:
        """Return whether `cancel()` was called without a later `cancel(False)`."""
        return self._cancelled

    def cancel(self, cancelled: bool = True) -> None:
        """Set or unset cancellation. May be called from any thread or handler at any time.

        While cancellation is set, each native call raises CancelledError within the time of a ubatch, and its sequences
        are then empty. Cancellation stays set until cancel(False). After close(), only `cancelled` and `cancels`
        change.
        """
        if cancelled:
            self.cancels = next(self._cancel_numbers)
        else:
            self._cancelled = False
        pair = self._pair  # this reference keeps the pair alive during a close()
        if pair is not None:
            lib.pymtp_pair_cancel(pair, cancelled)
        # set last and unset first: otherwise, if threads set and unset it at the same time, native calls could stay
        # cancelled while `cancelled` returns False
        if cancelled:
            self._cancelled = True

    def _free(self) -> None:
        self._pair = None

    @alone
    def break_on_purpose(self, fault: str) -> None:
        """Inject a fault into all later calls, until the fault "none" is injected. For tests.

        fault: a name of enum pymtp_fault, in lower case and without its prefix. Faults of the head do not change greedy
            text; acceptance and the head's logits show them.
        """
        lib.pymtp_pair_inject_fault(self._pair, getattr(lib, f"PYMTP_FAULT_{fault.upper()}"))

    @alone
    def compute_as_devices(self) -> None:
        """Compute recurrent layers in host memory with the operations for GPUs from now on. For tests."""
        check(lib.pymtp_pair_force_device_ops(self._pair, True))

    @alone
    def head_state(self, seq: int = 0) -> bytes:
        """Return the head's cache of a sequence as llama.cpp saves it: positions, then rows of K, then rows of V.

        The result is empty if the context makes no drafts.
        """
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
    return native.reshape(rows, columns).copy()  # a copy: the next call and close() overwrite the buffer
