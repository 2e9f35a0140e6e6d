"""A target and a draft context of one model: prefill, draft, verify, rewind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import count
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pymtp.context.host_memory import check_room
from pymtp.context.inspect import Counters, Inspection
from pymtp.context.memory import DeviceMemory, read_memory
from pymtp.context.options import ContextOptions
from pymtp.context.state import SequenceState
from pymtp.drafting.depth import watch_quotas
from pymtp.errors import InvalidRequestError, PymtpError
from pymtp.model.model import TAPS, Model
from pymtp.model.names_elsewhere import OPTION_NAMES_ELSEWHERE
from pymtp.native import Handle, alone, check, ffi, lib
from pymtp.native.process import refuse_copies
from pymtp.sampling import Logits, Sampler, TokenLogprobs
from pymtp.validation import given_options, read_int

# by the negative token of each image, its rows, float32 of shape (nx * ny, n_embd)
ImageRows: TypeAlias = Mapping[int, NDArray[np.float32]]
_NO_IMAGES: ImageRows = {}


class Context:
    """A target context and, with drafts, the head's draft context. The caches of both hold the same sequences.

    The target holds `tokens_held(seq)` tokens of a sequence. `draft` is called with the token after these, then with
    each draft that was chosen from the logits of the last call; `verify` takes the same token and the drafts; `rewind`
    removes the drafts that were not accepted. Sequences are independent; the default is sequence 0.

    Calls from several threads run one after the other. Ctrl-C, or any exception that a handler raises, ends the call on
    the main thread. The sequences of that call are then empty, and the next call works. All methods raise ClosedError
    after close().

    options: the ContextOptions that the context was made with.
    draft_tokens, draft_text: the largest numbers of drafts of a sequence that come from the head, and from the text.
        max_drafts: the larger of the two.
    max_verify_rows: the largest number of rows in a decode of `verify_chains`, of all its sequences together.
    state: saves and loads the state of sequences.
    inspect: shows the computed nodes and the times of operations.
    cancels: the number of calls of `cancel`. cancelled: whether `cancel()` was called without a later `cancel(False)`.
    """

    def __init__(
        self,
        model: Model,
        options: ContextOptions | None = None,
        *,
        max_outputs: int = 1,
        embeddings: bool = False,
        trace: bool = False,
        **keywords: Any,
    ) -> None:
        """Allocate the caches, and the draft context where there are drafts.

        options: None for those of `keywords`, the fields of ContextOptions.
        max_outputs: the largest number of logit rows that `prefill_logits` computes at once.
        embeddings: keep the embeddings of prompts for the method `embeddings`. Every prompt token is then an output.
        trace: record the computed nodes for the method `trace`. This makes calls slower.

        Raises InvalidRequestError for values outside their range, and where K, V and states do not fit in the
        host's memory; NativeError when llama.cpp cannot make the contexts.
        """
        options = given_options("Context()", ContextOptions, options, keywords, OPTION_NAMES_ELSEWHERE)
        params, pair_options = options.context_params(
            model, max_outputs=max_outputs, embeddings=embeddings, trace=trace
        )
        check_room(model, params, pair_options)
        watch_quotas()
        self._handle = Handle(
            "Context",
            lambda: lib.pymtp_pair_init(model.handle, params, pair_options),
            lib.pymtp_pair_free,
            samples=True,
        )
        self._logits = ffi.new("const float **")
        self._token = ffi.new("int32_t *")
        self._outcomes = _Outcomes(options.n_seq_max, 1 + max(pair_options.n_draft, pair_options.n_text))
        self._n_vocab = model.n_vocab
        self._n_embeddings = 0
        self._keeps_embeddings = embeddings
        self.model = model
        self.options = options
        self.tap = TAPS[pair_options.tap]
        self.draft_tokens: int = pair_options.n_draft
        self.draft_text: int = pair_options.n_text
        self.max_drafts = max(self.draft_tokens, self.draft_text)
        self.n_seq_max = options.n_seq_max
        self.n_ctx: int = lib.pymtp_pair_n_ctx(self._handle.pointer)
        self.n_ubatch = min(options.n_batch, options.n_ubatch)
        rows = max((1 + self.draft_tokens) * self.n_seq_max, 1 + self.draft_text)
        self.max_verify_rows = min(rows, self.n_ubatch)
        self.state = SequenceState(self._handle, self.n_ctx, self.n_seq_max)
        self.inspect = Inspection(self._handle, self.n_seq_max)
        self.cancels, self.cancelled = 0, False
        self._cancel_numbers = count(1)
        self._reports: set[int] = set()  # sequences whose sampling asks for logprobs
        self._logprobs: dict[int, list[TokenLogprobs]] = {}
        # by sequence, the sampler with a logits processor to which the native sampler refers, if it has one; several
        # while it is not known which one that is
        self._processing: dict[int, tuple[Sampler, ...]] = {}

    @property
    def n_past(self) -> int:
        """Return the number of tokens that the target holds for sequence 0."""
        return self.tokens_held()

    def _check_seq(self, seq: int) -> None:
        read_int("seq", seq, 0, self.n_seq_max - 1)

    @property
    @alone
    def counters(self) -> Counters:
        """Return the work done since the context was made."""
        c = ffi.new("struct pymtp_counters *")
        lib.pymtp_pair_counters(self._handle.pointer, c)
        return Counters(**{field.name: getattr(c, field.name) for field in fields(Counters)})

    @alone
    def check(self) -> None:
        """Raise NativeError where an earlier failure left the context unusable: see pymtp_status in pymtp.h."""
        # a rewind to the current length changes nothing, but on an unusable context it fails like every other call
        pair = self._handle.pointer
        check(lib.pymtp_pair_rewind(pair, 0, lib.pymtp_pair_n_past(pair, 0)))

    @alone
    def memory(self) -> list[DeviceMemory]:
        """Return the memory in use on each device. Compute buffers grow with the first round of each depth."""
        return read_memory(lambda rows, limit: lib.pymtp_pair_memory(self._handle.pointer, rows, limit))

    @alone
    def tokens_held(self, seq: int = 0) -> int:
        """Return the number of tokens that the target holds for a sequence.

        Raises InvalidRequestError for an unknown sequence.
        """
        self._check_seq(seq)
        return int(lib.pymtp_pair_n_past(self._handle.pointer, seq))

    @alone
    def tokens(self, seq: int = 0) -> list[int]:
        """Return the tokens that the target holds for a sequence, in order."""
        self._check_seq(seq)
        n = lib.pymtp_pair_n_past(self._handle.pointer, seq)
        return list(ffi.unpack(lib.pymtp_pair_tokens(self._handle.pointer, seq), n)) if n else []

    @alone
    def begins_with(self, tokens: NDArray[np.int32], seq: int = 0) -> bool:
        """Return whether the tokens of a sequence begin with `tokens`."""
        self._check_seq(seq)
        pair = self._handle.pointer
        n = lib.pymtp_pair_n_past(pair, seq)
        if len(tokens) > n:
            return False
        held = np.frombuffer(ffi.buffer(lib.pymtp_pair_tokens(pair, seq), 4 * n), dtype=np.int32) if n else tokens
        return bool(np.array_equal(held[: len(tokens)], tokens))

    def _rows(self, n: int) -> Logits:
        return _floats(self._logits[0], n, self._n_vocab)

    @alone
    def add_image(self, token: int, nx: int, ny: int) -> None:
        """Make an image known, before its tokens are computed, loaded or copied.

        In prompts, an image is a run of nx * ny equal negative tokens: ny rows of nx columns. The call may be repeated.

        token: the negative token of the image. It always means this image.

        Raises InvalidRequestError if the token has another grid, for a model without positions of images, and with
        drafts unless prefill="fused".
        """
        check(lib.pymtp_pair_add_image(self._handle.pointer, token, nx, ny))

    def prefill(self, tokens: Sequence[int], seq: int = 0, images: ImageRows = _NO_IMAGES) -> Logits:
        """Compute a prompt, or the next part of a prompt, in the target and the head.

        images: for each negative token among the tokens, all rows of its image, float32 of shape (nx * ny, n_embd): the
            model takes them in place of the tokens' embeddings.

        Returns the logits of the last token, float32 of shape (n_vocab,).

        Raises ContextFullError when the tokens do not fit, and InvalidRequestError for a token id that is neither in
        the vocabulary nor of an image, and for an image that text follows too early; in these cases nothing is changed.
        After CancelledError or KeyboardInterrupt, the sequence is empty.
        """
        return self.prefill_batch({seq: tokens}, images).reshape(-1)

    def prefill_batch(self, prompts: Mapping[int, Sequence[int]], images: ImageRows = _NO_IMAGES) -> Logits:
        """Compute prompts, or the next parts of prompts, of several sequences together.

        prompts: the tokens to add to each sequence, by sequence number.
        images: see `prefill`.

        Returns the logits of each sequence's last token, float32 of shape (len(prompts), n_vocab), in ascending order
        of the sequence numbers. Raises as `prefill`.
        """
        return self._prefill(prompts, images, all_logits=False)

    def prefill_logits(self, tokens: Sequence[int], seq: int = 0, images: ImageRows = _NO_IMAGES) -> Logits:
        """Compute a prompt as `prefill`, and return the logits of every token, shape (len(tokens), n_vocab).

        The call needs host memory of twice the size of the logits. It computes max_outputs rows at a time.
        """
        return self._prefill({seq: tokens}, images, all_logits=True)

    @alone
    def _prefill(self, prompts: Mapping[int, Sequence[int]], images: ImageRows, *, all_logits: bool) -> Logits:
        seqs = sorted(prompts)
        for seq in seqs:
            self._check_seq(seq)
        tokens = ffi.new("llama_token[]", [token for seq in seqs for token in prompts[seq]])
        lengths = [len(prompts[seq]) for seq in seqs]
        arrays = {token: _image_rows(rows, self.model.n_embd) for token, rows in images.items()}
        rows = [(token, ffi.from_buffer("float[]", array), len(array)) for token, array in arrays.items()]
        self._n_embeddings = 0  # the embeddings of the last prefill are lost, even if this one fails
        pair = self._handle.pointer
        check(lib.pymtp_pair_prefill(pair, len(seqs), seqs, tokens, lengths, rows, len(rows), all_logits, self._logits))
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
        return _floats(lib.pymtp_pair_embeddings(self._handle.pointer), self._n_embeddings, self.model.n_embd)

    @alone
    def draft(self, token: int, seq: int = 0) -> Logits:
        """Run one step of the head, and return its logits for the token after `token`, shape (n_vocab,).

        token: in the first step, the token after the last one that the target holds; in each later step, the draft of
            the step before.

        Raises InvalidRequestError after `draft_tokens` steps, ContextFullError when the context is full.
        """
        check(lib.pymtp_pair_draft_step(self._handle.pointer, seq, token, self._logits))
        return self._rows(1).reshape(-1)

    @alone
    def verify(self, tokens: Sequence[int], seq: int = 0) -> Logits:
        """Decode 1 to 1+max_drafts tokens with the target, and return the logits of each, (len(tokens), n_vocab)."""
        array = ffi.new("llama_token[]", list(tokens))  # list() refuses a number, which cffi would use as a length
        check(lib.pymtp_pair_verify(self._handle.pointer, seq, array, len(tokens), self._logits))
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
        old, new = self._processing.get(seq, ()), () if sampler.processor is None else (sampler,)
        with sampler.compiled(self.model) as native:
            self._processing[seq] = (*new, *old)  # an exception of a signal handler may come at any line
            status = lib.pymtp_pair_set_sampling(self._handle.pointer, seq, native)
            self._processing[seq] = new if status == lib.PYMTP_OK else old
            check(status)
        self._logprobs.pop(seq, None)
        (self._reports.discard if sampler.params.logprobs is None else self._reports.add)(seq)

    @alone
    def first_token(self, seq: int = 0) -> int:
        """Sample the token after a prompt from the logits of the last prefill.

        Raises InvalidRequestError when the grammar allows no token, and the error of a logits processor; the sequence
        keeps its tokens.
        """
        status = lib.pymtp_pair_first_token(self._handle.pointer, seq, self._token)
        if status == lib.PYMTP_DEAD_END and (error := self._processor_error(seq)) is not None:
            raise error  # without `from`, which would replace the error's cause
        check(status)
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
        seqs, out, pair = sorted(tokens), self._outcomes, self._handle.pointer
        first = [tokens[seq] for seq in seqs]
        check(lib.pymtp_pair_draft_tokens(pair, len(seqs), seqs, first, n, out.tokens, out.confidences, out.native))
        return out.drafts(seqs, n)

    @property
    @alone
    def draft_vocab(self) -> int:
        """Return the number of tokens that drafts are chosen from.

        With draft_vocab="auto", drafts are chosen from all tokens while too many of the text's tokens are missing in
        the draft vocabulary.
        """
        return int(lib.pymtp_pair_draft_vocab_size(self._handle.pointer))

    @alone
    def drafts_over(self, token: int) -> bool:
        """Return whether the last `draft_chain` could have drafted `token`."""
        return bool(lib.pymtp_pair_in_draft_vocab(self._handle.pointer, token))

    @alone
    def forget_chosen(self) -> None:
        """Forget how many of the target's tokens were outside the draft vocabulary.

        By this share, draft_vocab="auto" chooses between the draft vocabulary and all tokens.
        """
        lib.pymtp_pair_reset_draft_vocab(self._handle.pointer)

    def verify_chain(self, tokens: Sequence[int], seq: int = 0) -> list[int]:
        """Verify a token and its drafts, and return the accepted drafts and one more sampled token.

        A token is sampled from each row of logits in turn, until one differs from the next draft. The list is shorter
        if a grammar allows no further token. Raises as `verify`, and as `first_token` if the grammar allows no token
        after the first row.
        """
        outcome = self.verify_chains({seq: tokens})[seq]
        if isinstance(outcome, PymtpError):
            raise outcome
        return outcome

    @alone
    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]:
        """Verify the tokens of each of several sequences, as `verify_chain` does for one.

        Sequences with consecutive numbers share a decode, in which each chain is padded to the length of the longest
        one; all these rows must fit into the context. Padding rows are neither sampled nor kept. If a single sequence
        fails, as by its logits processor, its value in the result is its error, and the other sequences have their
        tokens. If the call raises an exception, all its sequences are empty.
        """
        seqs, out, pair = sorted(chains), self._outcomes, self._handle.pointer
        lengths = [len(chains[seq]) for seq in seqs]
        tokens = [token for seq in seqs for token in chains[seq]]
        check(lib.pymtp_pair_verify_tokens(pair, len(seqs), seqs, tokens, lengths, out.tokens, out.native))
        if self._reports:
            for k, seq in enumerate(seqs):
                self._keep_logprobs(seq, out.native[k].n)  # also for tokens before a dead end
        outcomes = out.sampled(seqs, lengths)
        for seq, outcome in outcomes.items():
            if isinstance(outcome, PymtpError):
                outcomes[seq] = self._processor_error(seq) or outcome
        return outcomes

    def _processor_error(self, seq: int) -> PymtpError | None:
        """Return the error of the sequence's logits processor; None without one."""
        samplers = self._processing.get(seq)
        return None if not samplers or samplers[0].processor is None else samplers[0].processor.error

    def logprobs(self, seq: int = 0) -> list[TokenLogprobs]:
        """Return the log-probabilities of the tokens of the last `first_token` or verification.

        The list is empty unless the sequence's sampling asks for logprobs.
        """
        return self._logprobs.get(seq, [])

    def _keep_logprobs(self, seq: int, n_sampled: int) -> None:
        if seq not in self._reports:
            return
        pairs: list[tuple[int, float]] = []
        if n_sampled:
            found = ffi.new("const struct pymtp_logprob **")
            n = lib.pymtp_pair_logprobs(self._handle.pointer, seq, found)
            pairs = [(p.token, p.logprob) for p in found[0][0:n]]
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
        check(lib.pymtp_pair_rewind(self._handle.pointer, seq, n_keep))

    @alone
    def copy(self, source: int, seq: int) -> None:
        """Copy a sequence into an empty one, which then continues as `source` would, also with `first_token`.

        K, V and states are copied; nothing is computed. The source's unverified drafts are discarded, and `seq` cannot
        be rewound. `seq` keeps its own sampling, which treats the copied tokens as a prompt.

        Raises InvalidRequestError when `seq` is not empty. After CancelledError and NativeError, `seq` is empty. The
        tokens of the source never change.
        """
        check(lib.pymtp_pair_copy(self._handle.pointer, source, seq))

    @alone
    def move(self, source: int, seq: int) -> None:
        """Move a sequence, with its sampling, into an empty one; `source` is empty afterwards. Raises as `copy`."""
        old, moved = self._processing.get(seq, ()), self._processing.get(source, ())
        self._processing[seq] = (*moved, *old)  # as in `set_sampling`
        status = lib.pymtp_pair_move(self._handle.pointer, source, seq)
        self._processing[seq], self._processing[source] = (moved, ()) if status == lib.PYMTP_OK else (old, moved)
        check(status)
        (self._reports.add if source in self._reports else self._reports.discard)(seq)
        self._logprobs.pop(seq, None)
        if source in self._logprobs:
            self._logprobs[seq] = self._logprobs.pop(source)

    @alone
    def clear(self, seq: int | None = None) -> None:
        """Remove all tokens of one sequence, or of all sequences if `seq` is None."""
        for number in range(self.n_seq_max) if seq is None else [seq]:
            check(lib.pymtp_pair_clear(self._handle.pointer, number))

    def cancel(self, cancelled: bool = True) -> None:
        """Set or unset cancellation. May be called from any thread or handler at any time.

        While cancellation is set, each native call raises CancelledError within the time of a ubatch, and its sequences
        are then empty. Cancellation stays set until cancel(False). After close(), only `cancelled` and `cancels`
        change.
        """
        if cancelled:
            self.cancels = next(self._cancel_numbers)
        else:
            self.cancelled = False
        pair = self._handle.pointer  # this reference keeps the pair alive during a close()
        if pair is not None:
            lib.pymtp_pair_cancel(pair, cancelled)
        # set last and unset first: otherwise, if threads set and unset it at the same time, native calls could stay
        # cancelled while `cancelled` returns False
        if cancelled:
            self.cancelled = True

    def close(self) -> None:
        """Refuse new calls, wait for the running call, and free both contexts.

        Call `cancel()` first to wait less. Within a call of the same thread, close() cancels that call, which frees
        everything at its end. A second close() does nothing.
        """
        self._handle.close(self.cancel)

    @property
    def closed(self) -> bool:
        """Return whether close() was called."""
        return self._handle.closed

    @property
    def in_call_of_this_thread(self) -> bool:
        """Return whether this thread is in a call of the context: then a signal or log handler runs."""
        return self._handle.in_call_of_this_thread

    def lose(self) -> None:
        """Close the context in a forked child, without freeing it: a thread that used it does not exist there."""
        self._handle.lose()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


class _Outcomes:
    """Buffers for the tokens of each sequence of a round.

    They are allocated once, because a round of a small model takes only a few hundred microseconds.
    """

    def __init__(self, n_seqs: int, n_tokens: int) -> None:
        """Allocate buffers for n_tokens tokens of each of n_seqs sequences."""
        self.native = ffi.new("struct pymtp_outcome[]", n_seqs)
        self.tokens = ffi.new("llama_token[]", n_seqs * n_tokens)
        self.confidences = ffi.new("float[]", n_seqs * n_tokens)

    def drafts(self, seqs: Sequence[int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        """Read the drafts and confidences of a call that drafted up to n tokens per sequence."""
        tokens, confidences = ffi.unpack(self.tokens, len(seqs) * n), ffi.unpack(self.confidences, len(seqs) * n)
        found: dict[int, tuple[list[int], list[float]]] = {}
        for k, seq in enumerate(seqs):
            i, j = k * n, k * n + self.native[k].n
            found[seq] = tokens[i:j], confidences[i:j]
        return found

    def sampled(self, seqs: Sequence[int], lengths: Sequence[int]) -> dict[int, list[int] | PymtpError]:
        """Read the tokens of a call that sampled up to `lengths` tokens per sequence.

        If a grammar allows some tokens and then no further one, these tokens are returned without an error. The next
        call raises the error, unless the text ends with these tokens.
        """
        tokens = ffi.unpack(self.tokens, sum(lengths))
        found: dict[int, list[int] | PymtpError] = {}
        start = 0
        for k, seq in enumerate(seqs):
            outcome = self.native[k]
            some = outcome.status == lib.PYMTP_OK or (outcome.status == lib.PYMTP_DEAD_END and outcome.n > 0)
            found[seq] = tokens[start : start + outcome.n] if some else self._error(k)
            start += lengths[k]
        return found

    def _error(self, k: int) -> PymtpError:
        """Return the error of the k-th sequence, which has no tokens."""
        try:
            check(lib.pymtp_outcome_error(self.native + k))
        except PymtpError as error:
            return error
        raise AssertionError("a failed outcome has an error")


def _image_rows(rows: object, n_embd: int) -> NDArray[np.float32]:
    """Check the rows of an image."""
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.shape[1:] != (n_embd,):
        raise InvalidRequestError(f"the rows of an image are an array of type float32 and shape (tokens, {n_embd})")
    return np.ascontiguousarray(rows)


def _floats(pointer: Any, rows: int, columns: int) -> NDArray[np.float32]:
    if rows == 0:
        return np.empty((0, columns), dtype=np.float32)
    native = np.frombuffer(ffi.buffer(pointer, rows * columns * 4), dtype=np.float32)
    return native.reshape(rows, columns).copy()  # a copy: the next call and close() overwrite the buffer
