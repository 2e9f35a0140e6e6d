"""Embeddings and log-probabilities of prompts: the outputs of all their tokens, between the steps of the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from pymtp.chat.prompt import CacheKey
from pymtp.context.context import Context
from pymtp.context.host_memory import free_host_memory
from pymtp.context.memory import PARTS, DeviceMemory, least_memory
from pymtp.context.options import ContextOptions
from pymtp.engine.image_encoder import NO_IMAGES, ImageEncoder, PromptImages, Rows
from pymtp.engine.logprobs import logprobs_of
from pymtp.engine.request import Waiter
from pymtp.engine.thread import POLL_SECONDS, EngineThread
from pymtp.errors import CancelledError, ClosedError, ContextFullError, InvalidRequestError, copied
from pymtp.images import Image
from pymtp.native.process import tell_of_forks
from pymtp.sampling import TokenLogprobs
from pymtp.validation import shown

Pooling: TypeAlias = Literal["last", "mean"]
Compute: TypeAlias = Callable[[Context, Sequence[int], Mapping[int, Rows]], NDArray[np.float32]]
# Tokens of a call on the engine's thread. Every token is an output with logits, which no embedding needs: at 64 tokens
# they take 64 MB with a vocabulary of 250,000, and requests beside wait no longer than for a share of a prompt.
CHUNK = 64
MIN_CTX = 1024  # smallest context where a slot is not shorter, which is made anew for a longer prompt


class Embedder:
    """Computes embeddings and log-probabilities of prompts, on the engine's thread and in a context of its own.

    The context holds one sequence, is made for the first prompt, and grows with the longest one. Several threads may
    use the embedder: prompts are computed one after the other.

    memory: the memory of the context on each device, without the weights, which are the engine's too.
    n_tokens, n_decodes: the tokens that were computed so far, and the decodes that it took.
    """

    def __init__(
        self, engine_context: Context, options: ContextOptions, thread: EngineThread, images: ImageEncoder | None = None
    ) -> None:
        """Create the embedder, without its context.

        options: those of the engine's context.
        images: the encoder of the images of prompts, in the turns of the engine.
        """
        self._images = images
        self._model, self._options, self._thread = engine_context.model, options, thread
        self._engine_context = engine_context
        self._context: Context | None = None
        self.memory: Sequence[DeviceMemory] = ()
        self.n_tokens = self.n_decodes = 0
        self._lock = threading.RLock()  # as it knows its thread
        self._closed = False
        tell_of_forks(self)

    def _after_fork_in_child(self) -> None:
        """Replace the lock in a forked child, because another thread may have held it at the fork."""
        self._lock = threading.RLock()

    def embed(
        self,
        tokens: Sequence[int],
        pooling: Pooling,
        cancelled: Callable[[], bool] = lambda: False,
        images: PromptImages = NO_IMAGES,
    ) -> NDArray[np.float32]:
        """Return the pooled hidden states of a prompt, after the final norm, scaled to length 1. Shape (n_embd,).

        pooling: "last" for the state of the last token, "mean" for the mean of all.
        cancelled: is asked between chunks of CHUNK tokens, and while images or other prompts are waited for.
        images: the images of the prompt.

        Raises InvalidRequestError for another pooling and in a handler that interrupts `embed`, ContextFullError if
        there is no memory for the prompt, CancelledError if `cancelled` returns true or after cancel() of the engine's
        context, and ClosedError.
        """
        if pooling not in get_args(Pooling):
            raise InvalidRequestError(f"pooling={shown(pooling)} must be last or mean", "pooling")
        total, last = np.zeros(self._model.n_embd), np.zeros(self._model.n_embd, np.float32)

        def add(rows: NDArray[np.float32]) -> None:
            nonlocal last
            np.add(total, rows.sum(axis=0, dtype=np.float64), out=total)
            last = rows[-1]

        self._run(tokens, _embeddings, add, cancelled, images)
        return normalized(total / len(tokens) if pooling == "mean" else last)

    def embed_tokens(
        self,
        tokens: Sequence[int],
        cancelled: Callable[[], bool] = lambda: False,
        images: PromptImages = NO_IMAGES,
    ) -> NDArray[np.float32]:
        """Return the hidden states of a prompt, after the final norm. Shape (len(tokens), n_embd).

        cancelled, images: see `embed`, which also raises the same errors.
        """
        chunks: list[NDArray[np.float32]] = []
        self._run(tokens, _embeddings, chunks.append, cancelled, images)
        return np.concatenate(chunks)

    def logprobs(
        self, tokens: Sequence[int], n_top: int, cancelled: Callable[[], bool] = lambda: False
    ) -> list[TokenLogprobs | None]:
        """Return the log-probability of each token of a prompt after the tokens before it, and the n_top likeliest.

        The first entry is None. The logits of CHUNK tokens are in memory at a time. Raises the errors of `embed`.
        """
        found: list[TokenLogprobs | None] = [None]

        def add(rows: NDArray[np.float32]) -> None:
            found.extend([logprobs_of(row, tokens[len(found) + i], n_top) for i, row in enumerate(rows)])

        self._run(tokens[:-1], _logits, add, cancelled, NO_IMAGES)
        return found

    def _run(
        self,
        tokens: Sequence[int],
        compute: Compute,
        add: Callable[[NDArray[np.float32]], None],
        cancelled: Callable[[], bool],
        images: PromptImages,
    ) -> None:
        """Compute a prompt in chunks.

        compute: computes a chunk and returns its outputs, on the engine's thread. add: is given these, on this thread.
        """
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise InvalidRequestError("this thread computes an embedding: a signal handler may only cancel or close")
        n_cancels = self._engine_context.cancels

        def check() -> None:
            if cancelled() or self._engine_context.cancels > n_cancels:
                raise CancelledError("the computation of the prompt was cancelled")

        if images.by_token:
            self._check_memory(len(tokens))  # before the projector works for a prompt that is refused
        # before the lock: other prompts do not wait for the projector
        seen = {token: self._rows(image, images.key, check) for token, image in images.by_token.items()}
        try:
            while not self._lock.acquire(timeout=POLL_SECONDS):
                check()  # else a prompt that was cancelled would keep this thread as long as the others compute
            # on this thread: the steps of the engine go on while memory is allocated
            context = self._context_for(len(tokens))
            last = {token: i for i, token in enumerate(tokens) if token < 0}
            for start in range(0, len(tokens), CHUNK):
                check()
                seen = {token: rows for token, rows in seen.items() if last[token] >= start}
                chunk = tokens[start : start + CHUNK]
                needed = {token: seen[token] for token in chunk if token < 0}
                rows = self._thread.call(partial(self._compute, context, chunk, start, compute, images, needed))
                self.n_tokens, self.n_decodes = self.n_tokens + len(rows), self.n_decodes + 1
                add(rows)
        finally:
            if self._lock._is_owned():  # type: ignore[attr-defined] # Ctrl-C may come right before the `while` ends
                self._lock.release()

    def _rows(self, image: Image, key: CacheKey | None, check: Callable[[], object]) -> Rows:
        """Wait until an image is encoded, and return its rows. check: raises an error to end the wait."""
        assert self._images is not None
        job, waiter = self._images.request(image, key), Waiter()
        try:
            job.on_done.append(waiter.notify)
            self._thread.wake()
            self._thread.wait(waiter, (), lambda: check() or job.done or self._thread.closed)
            self._thread.check_usable()
            if job.error is not None:
                raise copied(job.error)
            assert job.rows is not None
            return job.rows
        finally:
            self._images.leave(job)

    def _compute(
        self,
        context: Context,
        chunk: Sequence[int],
        start: int,
        compute: Compute,
        images: PromptImages,
        rows: Mapping[int, Rows],
    ) -> NDArray[np.float32]:
        """Compute the next chunk of a prompt, and return its outputs. Runs on the engine's thread."""
        if start == 0:
            context.clear()
            for token, image in images.by_token.items():
                assert self._images is not None
                context.add_image(token, *self._images.grid(image))
        return compute(context, chunk, rows)

    def close(self) -> None:
        """Free the context. A prompt that is being computed fails with ClosedError."""
        self._closed = True
        self._free()

    def _free(self) -> None:
        context, self._context, self.memory = self._context, None, ()
        if context is not None:
            context.close()

    def _context_for(self, n_tokens: int) -> Context:
        """Return the context, which is made anew if it is too short for a prompt."""
        if self._closed:
            raise ClosedError("the LLM is closed")
        if self._context is None or self._context.n_ctx < n_tokens:
            self._free()
            self._check_memory(n_tokens)
            made = Context(self._model, self._options_for(n_tokens), max_outputs=CHUNK, embeddings=True)
            self.memory = [replace(device, weights=0) for device in made.memory()]
            self._context = made
            if self._closed:  # close() was called meanwhile, and has found no context
                self._free()
                raise ClosedError("the LLM is closed")
            return made
        return self._context

    def _options_for(self, n_tokens: int) -> ContextOptions:
        # at most that of a slot: so it never takes more K and V than one slot more
        n_ctx = min(max(MIN_CTX, 1 << (n_tokens - 1).bit_length()), self._engine_context.n_ctx)
        return replace(
            self._options, n_ctx=n_ctx, n_seq_max=1, n_batch=CHUNK, n_ubatch=CHUNK, draft_tokens=0, draft_text=0
        )

    def _check_memory(self, n_tokens: int) -> None:
        """Raise ContextFullError if the system would have to swap, or to kill a process, for a context."""
        context, held = self._context, self.memory  # other threads may replace them
        if context is not None and context.n_ctx >= n_tokens:
            return
        needed = least_memory(self._model, *self._options_for(n_tokens).context_params(self._model))
        free = free_host_memory()
        if free is None:
            return
        free += sum(device.total for device in held if device.host)  # a new context takes the place of the old one
        if needed > free:
            raise ContextFullError(
                f"an embedding of {n_tokens} tokens takes at least {needed / 2**30:.1f} GiB of memory, and "
                f"{free / 2**30:.1f} GiB are free: give a shorter prompt"
            )


def _embeddings(context: Context, tokens: Sequence[int], rows: Mapping[int, Rows]) -> NDArray[np.float32]:
    """Compute tokens, and return their hidden states. rows: those of the images among the tokens."""
    if rows:
        context.prefill(tokens, images=rows)
    else:
        context.prefill(tokens)
    return context.embeddings()


def _logits(context: Context, tokens: Sequence[int], _: Mapping[int, Rows]) -> NDArray[np.float32]:
    """Compute tokens, and return their logits."""
    return context.prefill_logits(tokens)


def add_memory(first: Sequence[DeviceMemory], second: Sequence[DeviceMemory]) -> list[DeviceMemory]:
    """Return the sums of the memory on each device."""
    sums = {device.device: device for device in first}
    for more in second:
        old = sums.get(more.device)
        parts = {} if old is None else {name: getattr(old, name) + getattr(more, name) for name in PARTS}
        sums[more.device] = replace(more, **parts)
    return list(sums.values())


def normalized(vector: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return a vector scaled to length 1; zeros stay zeros."""
    length = np.linalg.norm(vector.astype(np.float64))
    return (vector / length if length else vector).astype(np.float32)
