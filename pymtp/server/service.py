"""The service that runs the requests of all APIs on an AsyncLLM, with a bounded queue and timeouts.

The service is independent of HTTP: each API passes a `GenerateRequest`, and reads `Delta`s from a `RunningRequest`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pymtp.async_llm import AsyncCompletions, AsyncLLM
from pymtp.chat import ContentDelta, OutputEvent, OutputFormat, OutputParser
from pymtp.context.memory import DeviceMemory
from pymtp.engine.request import Completion, FinishReason, Piece
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import (
    GenerateRequest,
    Output,
    OutputFinishReason,
    output_finish_reason,
    prepare_request,
)
from pymtp.sampling import SamplingParams
from pymtp.server.admission import Admission, AdmissionController
from pymtp.server.errors import RequestTimeoutError, UnavailableError, UnknownModelError
from pymtp.server.metrics.registry import Metrics, RequestMetrics
from pymtp.server.settings import ServerSettings
from pymtp.server.thinking_budget import apply_thinking_budget
from pymtp.server.timeouts import run_with_timeout
from pymtp.validation import shown

T = TypeVar("T")
# Seconds that the preparation of a request (template, tokens, grammar) may take, with the time until a thread is free.
# The slowest known body of the maximum size, 16 MiB of spaces, takes half of this.
PREPARE_TIMEOUT = 60.0
# The number of unread pieces after which a completion waits for its slow client. It is practically unlimited, because a
# waiting completion would occupy its slot, and because a request keeps all of its pieces in memory anyway.
MAX_BUFFERED_PIECES = 2**31
MAX_LOGPROB_VALUES = 2**22  # the highest number of log-probabilities of a request; each takes about 100 bytes of memory
# Characters that are parsed before other tasks may run: parsing can take 10 microseconds per character.
PARSE_SLICE = 2048


@dataclass(frozen=True)
class Delta:
    """The new output of one completion.

    index: the index of the completion among the n completions of the request.
    events: the new output as events of the output parser.
    pieces: the new output as pieces of the engine, with tokens and log-probabilities.
    finish_reason: why the completion finished; None if more deltas follow.
    """

    index: int
    events: list[OutputEvent]
    pieces: list[Piece]
    finish_reason: OutputFinishReason | None


class Service:
    """An AsyncLLM with admission control, timeouts, metrics and the server's defaults."""

    def __init__(self, llm: AsyncLLM, settings: ServerSettings, metrics: Metrics) -> None:
        self.llm, self.settings, self.metrics = llm, settings, metrics
        self._admission_controller = AdmissionController(llm.llm.context.n_seq_max + settings.max_queue)
        self._memory: asyncio.Future[list[DeviceMemory]] | None = None
        metrics.register_engine(llm, self.model_name)

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Return the default sampling parameters: the values of the model file, overridden by the server's options."""
        return {**self.llm.llm.sampling_defaults, **self.settings.sampling}

    @property
    def n_unfinished(self) -> int:
        """Return the number of completions that run or wait."""
        return self._admission_controller.n_unfinished

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return all names by which requests may ask for the model."""
        return self.settings.served_names or (self.llm.llm.model.path.stem,)

    @property
    def model_name(self) -> str:
        """Return the name that responses give to the model: its first name."""
        return self.model_names[0]

    def check_model(self, name: str | None) -> None:
        """Raise UnknownModelError for a name that is not among the names of --served-name.

        Without --served-name every name is accepted, because the server has only one model.
        """
        if name is not None and self.settings.served_names and name not in self.settings.served_names:
            raise UnknownModelError(
                f"there is no model {shown(name)}; the model's names are {', '.join(self.model_names)}"
            )

    async def memory(self) -> list[DeviceMemory]:
        """Return the memory that the model and the caches take on each device.

        Waits until the engine is between two steps. Concurrent calls wait on one thread together, so that the other
        threads stay free for requests.
        """
        if self._memory is None or self._memory.done():
            llm = self.llm.llm
            self._memory = asyncio.ensure_future(
                self.llm._in_thread(lambda: llm._engine_thread.call(llm.context.memory))
            )
        return await asyncio.shield(self._memory)

    async def check(self) -> None:
        """Wait until the engine is between two steps. Raises NativeError if the engine has failed permanently."""
        llm = self.llm.llm
        await self.llm._in_thread(lambda: llm._engine_thread.call(llm.context.check))

    def admit(self, n_completions: int) -> AbstractContextManager[Admission]:
        """Admit an HTTP request with the completions of all of its prompts. Raises QueueFullError."""
        return self._admission_controller.admit(n_completions)

    async def prepare(self, call: Callable[[], T]) -> T:
        """Run `call`, which prepares a request, on another thread, and return the result.

        Raises UnavailableError after PREPARE_TIMEOUT seconds.
        """
        try:
            return await run_with_timeout(PREPARE_TIMEOUT, self.llm._prepare(call))
        except asyncio.TimeoutError as error:
            raise _busy_error() from error

    @asynccontextmanager
    async def run_request(
        self, request: GenerateRequest, admission: Admission | None = None
    ) -> AsyncIterator[RunningRequest]:
        """Run a request, and cancel it when the context is left.

        admission: the admission of the HTTP request that this request is a part of, if that has several prompts; None
            admits this request alone. Leaving the context releases the completions of this request.

        Raises QueueFullError, InvalidRequestError, ContextFullError, RequestTimeoutError, UnavailableError and
        ClosedError.
        """
        n = request.params.n
        request = self.apply_thinking_budget(request)
        self._check_logprobs(request.params)
        with ExitStack() as stack:
            admission = admission or stack.enter_context(self.admit(n))
            stack.callback(admission.release, n)
            request_metrics = self.metrics.start_request(request.prompt)
            timeout = self._timeout(request)
            remaining = admission.arrival_time + timeout - asyncio.get_running_loop().time()
            try:
                source, output_format = await run_with_timeout(min(remaining, PREPARE_TIMEOUT), self._open(request))
            except asyncio.TimeoutError as error:
                raise (_timeout_error(timeout) if remaining <= PREPARE_TIMEOUT else _busy_error()) from error
            async with source:
                with request_metrics.started(source.prompt_tokens, n):
                    yield RunningRequest(
                        source,
                        output_format,
                        n,
                        self.settings.chunk_interval,
                        admission.arrival_time,
                        timeout,
                        request_metrics,
                    )

    async def _open(self, request: GenerateRequest) -> tuple[AsyncCompletions, OutputFormat | None]:
        """Prepare and submit a request. If the task is cancelled, a preparation that has started runs to its end."""
        prompt, params, output_format = await self.llm._prepare(lambda: prepare_request(self.llm.llm, request))
        return await self.llm._open(
            prompt, params, max_unread=MAX_BUFFERED_PIECES if request.stream else None
        ), output_format

    def apply_thinking_budget(self, request: GenerateRequest) -> GenerateRequest:
        """Return the request with the thinking budget that the server's options give it."""
        return apply_thinking_budget(request, self.settings, self.llm.llm.context.n_ctx)

    def _check_logprobs(self, params: SamplingParams) -> None:
        """Raise InvalidRequestError if the log-probabilities could take hundreds of megabytes."""
        if params.logprobs is not None:
            tokens = min(params.max_tokens or MAX_LOGPROB_VALUES, self.llm.llm.context.n_ctx)
            if params.n * tokens * (params.logprobs + 1) > MAX_LOGPROB_VALUES:
                raise InvalidRequestError(
                    f"n={params.n} completions of up to {tokens} tokens, with {params.logprobs} top log-probabilities "
                    f"for each token, could have more than {MAX_LOGPROB_VALUES} log-probabilities: reduce max_tokens"
                )

    def _timeout(self, request: GenerateRequest) -> float:
        return min(math.inf if limit is None else limit for limit in (request.timeout, self.settings.request_timeout))


def _timeout_error(timeout: float) -> RequestTimeoutError:
    return RequestTimeoutError(f"the request took longer than {timeout:g} seconds")


def _busy_error() -> UnavailableError:
    return UnavailableError(f"the server has not finished preparing the request after {PREPARE_TIMEOUT:g} seconds", 5)


class RunningRequest:
    """A running request. Iterate over it to get the deltas; `completions` is available after the last delta."""

    def __init__(
        self,
        source: AsyncCompletions,
        output_format: OutputFormat | None,
        n: int,
        chunk_interval: float,
        arrival_time: float,
        timeout: float,
        request_metrics: RequestMetrics,
    ) -> None:
        """arrival_time: the time of the event loop's clock when the request arrived.

        timeout: the number of seconds from the arrival after which the request is aborted.
        chunk_interval: the approximate number of seconds between two chunks of the stream.
        """
        self._source, self._interval, self._arrival_time, self._timeout = source, chunk_interval, arrival_time, timeout
        self._metrics = request_metrics
        self._parsers: list[OutputParser | None] = [
            None if output_format is None else output_format.parser() for _ in range(n)
        ]
        self._lengths = [0] * n

    @property
    def prompt_tokens(self) -> int:
        """Return the number of tokens of the prompt."""
        return self._source.prompt_tokens

    @property
    def completions(self) -> list[Completion]:
        """Return all completions. Raises InvalidRequestError if one of the completions has not finished."""
        return self._source.completions

    @property
    def parsers(self) -> list[OutputParser | None]:
        """Return the output parser of each completion; None if the prompt is not a chat."""
        return self._parsers

    async def outputs(self) -> list[Output]:
        """Wait until all completions have finished, and return their outputs. Raises the same errors as iteration."""
        reasons: dict[int, OutputFinishReason] = {}
        async for delta in self:
            if delta.finish_reason is not None:
                reasons[delta.index] = delta.finish_reason
        return [
            Output(done, None if parser is None else parser.output, reasons[i])
            for i, (done, parser) in enumerate(zip(self.completions, self._parsers, strict=True))
        ]

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield deltas until all completions have finished.

        Raises RequestTimeoutError, UnavailableError, and the error that the request failed with.
        """
        loop = asyncio.get_running_loop()
        timed_out: list[bool] = []

        def on_timeout() -> None:
            timed_out.append(True)
            self._source.close()

        timer = loop.call_at(self._arrival_time + self._timeout, on_timeout) if self._timeout < math.inf else None
        n_unfinished = len(self._parsers)
        try:
            while new_deltas := await self._source.take():
                if timed_out:
                    raise _timeout_error(self._timeout)
                if any(delta.reason == "cancelled" for delta in new_deltas):
                    raise UnavailableError("the server cancelled the request", retry_after=5)
                if n := sum(len(piece.token_ids) for delta in new_deltas for piece in delta.pieces):
                    self._metrics.on_tokens(n)
                n_unfinished -= sum(delta.reason is not None for delta in new_deltas)
                if not n_unfinished:
                    self._metrics.on_finished(self._source.completions)
                for delta in new_deltas:
                    yield await self._update(delta.index, delta.pieces, delta.reason)
                if self._interval and all(delta.reason is None for delta in new_deltas):
                    # Pieces of the same interval are joined to one chunk. All streams wait for multiples of the
                    # interval, so that one wake-up of the process serves all clients: a wake-up costs more than
                    # writing to a client.
                    remaining = self._interval - loop.time() % self._interval
                    await asyncio.sleep(remaining if remaining > self._interval / 2 else remaining + self._interval)
        finally:
            if timer is not None:
                timer.cancel()

    async def _update(self, index: int, pieces: list[Piece], reason: FinishReason | None) -> Delta:
        text = "".join(piece.text for piece in pieces)
        if reason is not None and not self._lengths[index] and not pieces:
            # A completion without streaming has no pieces; its whole text is available at the end.
            text = self._source.completion(index).text
        parser = self._parsers[index]
        start = self._lengths[index]
        self._lengths[index] += len(text)
        if parser is None:
            events: list[OutputEvent] = [ContentDelta(text, start, start + len(text))] if text else []
            return Delta(index, events, pieces, reason)
        events = []
        for at in range(0, len(text), PARSE_SLICE):
            if at:
                await asyncio.sleep(0)
            events += parser.push(text[at : at + PARSE_SLICE])
        if reason is not None:
            events += parser.finish()
            return Delta(index, events, pieces, output_finish_reason(reason, parser))
        return Delta(index, events, pieces, None)
