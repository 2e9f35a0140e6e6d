"""One completion from prompt to end: what each round brings, and the whole once it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pymtp.context import Context
from pymtp.depth import Depth
from pymtp.errors import CancelledError, ClosedError, InvalidRequestError
from pymtp.model import Model
from pymtp.sampling import Sampler, SamplingParams, TokenLogprobs
from pymtp.speculate import speculate
from pymtp.stats import Stats, Tally, collect
from pymtp.text import TextStream

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


class Request:
    """All state of one completion. One thread at a time: LLM and Stream see to that."""

    def __init__(
        self,
        context: Context,
        prompt: list[int],
        params: SamplingParams,
        new_depth: Callable[[float], Depth],
        *,
        cache_prompt: bool,
    ) -> None:
        """
        new_depth: the depth of a completion at a temperature.
        cache_prompt: go on from what the context holds, where the prompt begins with it.

        Raises InvalidRequestError where the context refuses the params; nothing is changed then.
        """
        self._context = context
        self._prompt = prompt
        self._sampler = Sampler(params)
        self._text = _Text(context.model, params)
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._pieces: list[str] = []
        self._reason: FinishReason | None = None
        self._tally = Tally()
        self._prefilled = self._updated = self._started = time.perf_counter()
        self._before = self._after = context.counters
        context.set_sampling(self._sampler)  # first: it may refuse
        self._cached = _reusable(context.tokens(), prompt) if cache_prompt else 0
        if not self._cached:
            context.clear()
        # the last token needs no place in the context
        room = context.n_ctx + 1 - len(prompt)
        self._most = room if params.max_tokens is None else min(room, params.max_tokens)
        # the rounds know the text, not the request: an abandoned request is no cycle, and frees the context at once
        self._rounds = speculate(
            context,
            prompt[self._cached :],
            self._text.ends,
            self._tally,
            new_depth(params.temperature),
            max_tokens=self._most,
        )

    @property
    def ended(self) -> bool:
        """Whether the last piece is out."""
        return self._reason is not None

    def step(self) -> Piece:
        """Runs the prompt and then, call by call, rounds: what each brought. The last piece ends the request; one
        without tokens, where it was cancelled. Whatever is raised ends it as "cancelled"."""
        try:
            if self._context.cancelled:
                return self._end("cancelled", [])
            tokens = next(self._rounds)
            self._mark()
            self._tokens += tokens
            if self._text.ended:
                return self._end("stop", tokens)
            if len(self._tokens) == self._most:
                return self._end("length", tokens)
            return self._piece(tokens)
        except CancelledError:
            return self._end("cancelled", [])
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Ends the request as "cancelled", unless it has ended."""
        if self._reason is None:
            self._end("cancelled", [])

    def _mark(self) -> None:
        self._updated = time.perf_counter()
        if not self._tokens:
            self._prefilled = self._updated

    def _piece(self, tokens: list[int]) -> Piece:
        text = self._text.take()
        self._pieces.append(text)
        logprobs = None
        if self._logprobs is not None:
            logprobs = self._context.logprobs()[: len(tokens)] if tokens else []
            self._logprobs += logprobs
        return Piece(text, tokens, logprobs)

    def _end(self, reason: FinishReason, tokens: list[int]) -> Piece:
        """The last piece, with what was held back."""
        self._reason = reason
        self._rounds.close()
        if not tokens:
            self._text.take()  # of a round that was broken off: its tokens did not come out
        with suppress(ClosedError):
            self._after = self._context.counters
        self._text.flush()
        return self._piece(tokens)

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


class _Text:
    """The text of the tokens that came out, and whether one of them ended it."""

    def __init__(self, model: Model, params: SamplingParams) -> None:
        self._model = model
        self._ignores_end = params.ignore_eos
        self._stream = TextStream(params.stop)
        self._fresh = ""  # not taken yet
        self.ended = False

    def ends(self, token: int) -> bool:
        """Takes the next token; whether it is the last."""
        if self._model.ends_generation(token) and not self._ignores_end:
            self.ended = True
        else:
            self._fresh += self._stream.push(self._model.token_bytes(token))
            self.ended = self._stream.stopped
        return self.ended

    def flush(self) -> None:
        """Gives out what was held back for a stop string or a character."""
        self._fresh += self._stream.flush()

    def take(self) -> str:
        """What is new since the last call."""
        text, self._fresh = self._fresh, ""
        return text


def _reusable(held: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens of the prompt, from the first on, need not be computed: all that are held, or none, for the
    recurrent layers cannot go back further than a round."""
    n = len(held)
    return n if n < len(prompt) and prompt[:n] == held else 0
