"""Embeddings of texts: the target's final hidden states, computed between the steps of the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from pymtp.context.context import Context
from pymtp.context.options import ContextOptions
from pymtp.engine.thread import EngineThread
from pymtp.errors import CancelledError, ClosedError, InvalidRequestError
from pymtp.model.model import Model
from pymtp.native.process import tell_of_forks
from pymtp.validation import shown

Pooling: TypeAlias = Literal["last", "mean"]
# Tokens of a call on the engine's thread. Every token is an output with logits, which no embedding needs: at 64 tokens
# they take 64 MB with a vocabulary of 250,000, and requests beside wait no longer than for a share of a prompt.
CHUNK = 64
MIN_CTX = 1024  # smallest context, which is made anew for a longer prompt


class Embedder:
    """Computes embeddings of prompts, on the engine's thread and in a context of its own.

    The context holds one sequence, is made for the first prompt, and grows with the longest one. Several threads may
    use the embedder: prompts are computed one after the other.
    """

    def __init__(self, model: Model, options: ContextOptions, thread: EngineThread) -> None:
        """Create the embedder, without its context. options: those of the engine's context."""
        self._model, self._options, self._thread = model, options, thread
        self._context: Context | None = None
        self._lock = threading.Lock()
        self._closed = False
        tell_of_forks(self)

    def _after_fork_in_child(self) -> None:
        """Replace the lock in a forked child, because another thread may have held it at the fork."""
        self._lock = threading.Lock()

    def embed(
        self, tokens: Sequence[int], pooling: Pooling, cancelled: Callable[[], bool] = lambda: False
    ) -> NDArray[np.float32]:
        """Return the pooled hidden states of a prompt, after the final norm, scaled to length 1. Shape (n_embd,).

        pooling: "last" for the state of the last token, "mean" for the mean of all.
        cancelled: is asked between chunks of CHUNK tokens.

        Raises InvalidRequestError for another pooling, CancelledError if `cancelled` returns true, and ClosedError.
        """
        if pooling not in get_args(Pooling):
            raise InvalidRequestError(f"pooling={shown(pooling)} must be last or mean", "pooling")
        total, last = np.zeros(self._model.n_embd), np.zeros(self._model.n_embd, np.float32)
        with self._lock:
            for start in range(0, len(tokens), CHUNK):
                if cancelled():
                    raise CancelledError("the embedding was cancelled")
                rows = self._thread.call(lambda at=start: self._compute(tokens, at))  # type: ignore[misc]
                total += rows.sum(axis=0, dtype=np.float64)
                last = rows[-1]
        return normalized(total / len(tokens) if pooling == "mean" else last)

    def close(self) -> None:
        """Free the context. A prompt that is being computed fails with ClosedError."""
        self._closed = True
        context, self._context = self._context, None
        if context is not None:
            context.close()

    def _compute(self, tokens: Sequence[int], start: int) -> NDArray[np.float32]:
        """Compute the next chunk of a prompt, and return its hidden states. Runs on the engine's thread."""
        if start == 0:
            context = self._context_for(len(tokens))
            context.clear()
        else:
            found = self._context
            if found is None:
                raise ClosedError("the LLM is closed")
            context = found
        context.prefill(tokens[start : start + CHUNK])
        return context.embeddings()

    def _context_for(self, n_tokens: int) -> Context:
        if self._closed:
            raise ClosedError("the LLM is closed")
        if self._context is None or self._context.n_ctx < n_tokens:
            if self._context is not None:
                self._context.close()
            n_ctx = max(MIN_CTX, 1 << (n_tokens - 1).bit_length())
            options = replace(self._options, n_ctx=n_ctx, n_seq_max=1, n_batch=CHUNK, n_ubatch=CHUNK, draft_tokens=0)
            self._context = None
            self._context = Context(self._model, options, embeddings=True)
        return self._context


def normalized(vector: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return a vector scaled to length 1; zeros stay zeros."""
    length = np.linalg.norm(vector.astype(np.float64))
    return (vector / length if length else vector).astype(np.float32)
