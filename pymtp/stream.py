"""A completion while it is generated: what each round brings, and the whole once it has ended."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pymtp.errors import CancelledError, ClosedError, InvalidRequestError
from pymtp.sampling import Sampler, SamplingParams, TokenLogprobs
from pymtp.speculate import Tally, speculate
from pymtp.stats import Stats, collect
from pymtp.text import TextStream

if TYPE_CHECKING:
    from pymtp.llm import LLM

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Completion:
    """What came of a prompt.

    finish_reason: "stop" (the model ended, or a stop string came), "length" (max_tokens, or the context is full),
        "cancelled".
    token_ids: what was generated, an end token included; `text` has neither that nor a stop string.
    seed: the sampling seed in use.
    logprobs: of each token of `token_ids`; None unless asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_token_ids: list[int]
    stats: Stats
    seed: int
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True)
class Piece:
    """A round's part of a streamed completion. `text` may be empty while a character or a stop string is incomplete."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None


class Stream:
    """Iterates over the pieces of a completion while it is generated. Ends early, as "cancelled", when it is closed or
    when its LLM turns to another prompt."""

    def __init__(self, llm: LLM, prompt: list[int], params: SamplingParams) -> None:
        self._llm = llm
        self._prompt = prompt
        self._sampler = Sampler(params)
        self._text = TextStream(params.stop)
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._pieces: list[str] = []
        self._reason: FinishReason | None = None
        self._fresh = ""  # text that the current round brought
        self._tally = Tally()
        self._prefilled = self._updated = self._started = time.perf_counter()
        self._before = self._after = llm.context.counters
        llm.context.set_sampling(self._sampler)  # first: it may refuse
        self._cached = llm.reusable(prompt)
        if not self._cached:
            llm.context.clear()
        # the last token needs no place in the context
        room = llm.context.n_ctx + 1 - len(prompt)
        self._most = room if params.max_tokens is None else min(room, params.max_tokens)
        self._rounds = speculate(
            llm.context,
            prompt[self._cached :],
            self._ends,
            self._tally,
            llm.new_depth(params.temperature),
            max_tokens=self._most,
        )

    def _ends(self, token: int) -> bool:
        model, params = self._llm.model, self._sampler.params
        if model.ends_generation(token) and not params.ignore_eos:
            self._reason = "stop"
        else:
            self._fresh += self._text.push(model.token_bytes(token))
            if self._text.stopped:
                self._reason = "stop"
        return self._reason is not None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        with self._llm.lock:
            if self._reason is not None:
                raise StopIteration
            if self._llm.cancelled:
                return self._end("cancelled", [])
            try:
                tokens = next(self._rounds)
            except CancelledError:
                return self._end("cancelled", [])
            except BaseException:
                self._end("cancelled", [])
                raise
            self._mark()
            self._tokens += tokens
            if self._reason is not None:
                return self._end(self._reason, tokens)
            if len(self._tokens) == self._most:
                return self._end("length", tokens)
            return self._piece(tokens)

    def _mark(self) -> None:
        self._updated = time.perf_counter()
        if not self._tokens:
            self._prefilled = self._updated

    def _piece(self, tokens: list[int]) -> Piece:
        text, self._fresh = self._fresh, ""
        self._pieces.append(text)
        logprobs = None
        if self._logprobs is not None:
            logprobs = self._llm.context.logprobs()[: len(tokens)] if tokens else []
            self._logprobs += logprobs
        return Piece(text, tokens, logprobs)

    def _end(self, reason: FinishReason, tokens: list[int]) -> Piece:
        """The last piece, with what was held back."""
        self._reason = reason
        self._rounds.close()
        with suppress(ClosedError):
            self._after = self._llm.context.counters
        self._fresh += self._text.flush()
        return self._piece(tokens)

    def close(self) -> None:
        """Stops generating. What came so far is in `completion`, as "cancelled" unless it was complete."""
        with self._llm.lock:
            if self._reason is None:
                self._end("cancelled", [])

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def completion(self) -> Completion:
        """The whole, once it has ended. Raises InvalidRequestError before."""
        if self._reason is None:
            raise InvalidRequestError("the stream has not ended: iterate over it, or close it")
        return Completion(
            text="".join(self._pieces),
            token_ids=list(self._tokens),
            finish_reason=self._reason,
            prompt_token_ids=list(self._prompt),
            stats=collect(
                len(self._prompt),
                len(self._tokens),
                self._prefilled - self._started,
                self._updated - self._prefilled,
                self._tally,
                self._before,
                self._after,
                cached_tokens=self._cached,
            ),
            seed=self._sampler.seed,
            logprobs=None if self._logprobs is None else list(self._logprobs),
        )
