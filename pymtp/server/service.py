"""The service that runs the requests of all APIs on an AsyncLLM, with a bounded queue and timeouts.

The service is independent of HTTP: each API passes a `GenerateRequest`, and reads deltas from a `RunningRequest`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pymtp.async_llm import AsyncCompletions, AsyncLLM
from pymtp.chat import Chat, ContentDelta, OutputEvent, OutputFormat, OutputParser, ParsedOutput
from pymtp.context.memory import DeviceMemory
from pymtp.engine.deltas import CompletionDelta, PromptProgress
from pymtp.engine.embedder import Pooling, add_memory
from pymtp.engine.image_encoder import NO_IMAGES, PromptImages
from pymtp.engine.prepare import Prompt
from pymtp.engine.request import Caller, Completion, current_caller
from pymtp.errors import CancelledError, InvalidRequestError
from pymtp.openai.generate_request import (
    GenerateRequest,
    Output,
    OutputFinishReason,
    left_out_keywords,
    output_finish_reason,
    prepare_request,
)
from pymtp.sampling import SamplingParams, TokenLogprobs
from pymtp.server.errors import (
    QueueFullError,
    RequestTimeoutError,
    UnavailableError,
    UnknownModelError,
    cancelled_error,
)
from pymtp.server.facts import ModelFacts
from pymtp.server.heap import HEAP
from pymtp.server.http.left_out import note_left_out
from pymtp.server.http.waited import waited_seconds
from pymtp.server.image_parts import image_urls
from pymtp.server.images.reader import Admit, ImageReader
from pymtp.server.metrics.registry import Metrics, RequestMetrics
from pymtp.server.rate import Rate
from pymtp.server.settings import ServerSettings
from pymtp.server.timeout import run_with_timeout
from pymtp.stats import Stats
from pymtp.validation import shown

T = TypeVar("T")
# Seconds that the preparation of a request (template, tokens, grammar) may take, with the time until a thread is free.
# The slowest known prompt of MAX_TEXT_BYTES, of spaces, takes half of this.
PREPARE_TIMEOUT = 60.0
MAX_TEXT_BYTES = 2**24  # the limit of a chat beside its images, and of another prompt
# The number of unread pieces after which a completion waits for its slow client. It is practically unlimited, because a
# waiting completion would occupy its slot, and because a request keeps all of its pieces in memory anyway.
MAX_BUFFERED_PIECES = 2**31
COMPLETION_BYTES = 2**14  # about the memory of a short completion
MAX_LOGPROB_VALUES = 2**22  # the highest number of log-probabilities of a request; each takes about 100 bytes of memory
PROGRESS_SECONDS = 0.05  # seconds between two looks at the progress of a prompt
# Characters that are parsed before other tasks may run: parsing can take 10 microseconds per character.
PARSE_SLICE = 2048


@dataclass
class Admission:
    """An admitted HTTP request.

    n_unfinished: the number of completions of the request that have not finished.
    n_places: the number of places that these completions take in the queue.
    client: the client that sent the request.
    arrival_time: the time of the event loop's clock when the request arrived, at the front if there is one.
    prompt_logprobs: the number of log-probabilities of its prompts so far.
    """

    n_unfinished: int
    n_places: int
    client: str
    arrival_time: float
    prompt_logprobs: int = 0

    def remaining(self, timeout: float) -> float:
        """Return the seconds until a timeout after the arrival."""
        return self.arrival_time + timeout - asyncio.get_running_loop().time()


class Service:
    """An AsyncLLM with admission control, timeouts, metrics and the server's defaults.

    n_unfinished: the number of completions that run or wait.
    """

    def __init__(self, llm: AsyncLLM, settings: ServerSettings, metrics: Metrics) -> None:
        self.llm, self.settings, self.metrics = llm, settings, metrics
        self.n_unfinished = 0
        self._places: Counter[str] = Counter()  # places in slots or in the queue, by client
        self._rate = Rate()  # counts the completions that finish
        self._memory: asyncio.Future[list[DeviceMemory]] | None = None
        # one thread at most waits for the embedder, and one with images, which waits for the projector, too
        self._embedding, self._seeing = asyncio.Lock(), asyncio.Lock()
        self._images = ImageReader(settings)
        metrics.register_engine(llm, self.model_name)

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Return the default sampling parameters: the values of the model file, overridden by the server's options."""
        return {**self.llm.llm.sampling_defaults, **self.settings.sampling}

    @property
    def facts(self) -> ModelFacts:
        """Return the facts that the server tells of its model."""
        llm = self.llm.llm
        n_ctx, n_seq_max = llm.context.n_ctx, llm.context.n_seq_max
        return ModelFacts(
            llm.model, self.model_names, llm.template_source, n_ctx, n_seq_max, self.sampling, llm.sees_images
        )

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
        """Return the memory that the model, the caches and the context of embeddings take on each device.

        Waits until the engine is between two steps. Concurrent calls wait on one thread together, so that the other
        threads stay free for requests.
        """
        if self._memory is None or self._memory.done():
            llm = self.llm.llm
            self._memory = asyncio.ensure_future(
                self.llm._in_thread(lambda: llm._engine_thread.call(llm.context.memory))
            )
        return add_memory(await asyncio.shield(self._memory), self.llm.llm._embedder.memory)

    def pooling(self, asked: Pooling | None = None) -> Pooling:
        """Return the pooling of a request: the asked one, or else the server's.

        Raises InvalidRequestError if the server has none.
        """
        if (pooling := asked or self.settings.pooling) == "none":
            raise InvalidRequestError("the server has --pooling none, which only /embedding knows", "pooling")
        return pooling

    async def embed(
        self,
        prompts: Sequence[Sequence[int]],
        pooling: Pooling | None,
        admission: Admission,
        images: Sequence[PromptImages] = (),
    ) -> list[NDArray[np.float32]]:
        """Return the embeddings of prompts, one after the other; those of other requests come between them.

        pooling: None for the vectors of all tokens of a prompt, shape (n_tokens, n_embd).
        admission: that of the request, which computes one prompt at a time.
        images: the images of each prompt; empty for prompts without images.

        Raises RequestTimeoutError, UnavailableError, ContextFullError and ClosedError.
        """
        timeout = math.inf if self.settings.request_timeout is None else self.settings.request_timeout
        stopped = threading.Event()

        async def embed_all() -> list[NDArray[np.float32]]:
            vectors = []
            for prompt, seen in zip(prompts, images or [NO_IMAGES] * len(prompts), strict=True):
                async with self._seeing if seen.by_token else self._embedding:
                    embedder = self.llm.llm._embedder
                    if pooling is None:
                        call = partial(embedder.embed_tokens, prompt, stopped.is_set, seen)
                    else:
                        call = partial(embedder.embed, prompt, pooling, stopped.is_set, seen)
                    vectors.append(await self.llm._in_thread(call))
            return vectors

        self.metrics.count_prompt(sum(map(len, prompts)))
        try:
            return await run_with_timeout(admission.remaining(timeout), embed_all())
        except asyncio.TimeoutError as error:
            raise _timeout_error(timeout) from error
        except CancelledError as error:
            raise cancelled_error() from error
        finally:
            stopped.set()

    async def check(self) -> None:
        """Wait until the engine is between two steps. Raises NativeError if the engine has failed permanently."""
        llm = self.llm.llm
        await self.llm._in_thread(lambda: llm._engine_thread.call(llm.context.check))

    @contextmanager
    def admit(self, n_completions: int, at_once: int | None = None) -> Iterator[Admission]:
        """Admit an HTTP request with the completions of all of its prompts; they count as unfinished in the context.

        The completions that may run at once take places in the queue. Clients have equal shares of the places. A
        request is admitted if there are places for it, if its client stays within its share, or if nothing runs.

        at_once: the number of completions that the request itself lets run or wait at once; None for all.

        Raises QueueFullError for other requests.
        """
        n_places = n_completions if at_once is None else min(at_once, n_completions)
        client = (current_caller.get() or Caller()).client
        self._check_room(client, n_places)
        if not self.n_unfinished:
            self._rate.begin()
        arrival_time = asyncio.get_running_loop().time() - waited_seconds.get()
        admission = Admission(n_completions, n_places, client, arrival_time)
        self.n_unfinished += n_completions
        self._places[client] += n_places
        try:
            yield admission
        finally:
            self._release(admission, admission.n_unfinished)

    def _check_room(self, client: str, n_places: int) -> None:
        limit, taken = self.llm.llm.context.n_seq_max + self.settings.max_queue, self._places.total()
        share = max(1, limit // len(self._places.keys() | {client}))
        too_many = min(taken + n_places - limit, self._places.get(client, 0) + n_places - share)
        if taken and too_many > 0:
            seconds = self._rate.seconds_until(too_many)
            raise QueueFullError(f"{taken} completions run or wait already: try again in {seconds} seconds", seconds)

    def _release(self, admission: Admission, n_completions: int) -> None:
        """Note that `n_completions` of a request have finished, which makes room for other requests."""
        admission.n_unfinished -= n_completions
        self.n_unfinished -= n_completions
        freed = max(0, admission.n_places - admission.n_unfinished)
        admission.n_places -= freed
        self._places[admission.client] -= freed
        if not self._places[admission.client]:
            del self._places[admission.client]
        if n_completions:
            self._rate.add(n_completions)
            HEAP.on_freed(n_completions * COMPLETION_BYTES)

    async def prepare(self, call: Callable[[], T]) -> T:
        """Run `call`, which prepares a request, on another thread, and return the result.

        Raises UnavailableError after PREPARE_TIMEOUT seconds.
        """
        try:
            return await run_with_timeout(PREPARE_TIMEOUT, self.llm._prepare(call))
        except asyncio.TimeoutError as error:
            raise _busy_error() from error

    @asynccontextmanager
    async def read_images(
        self, request: GenerateRequest, admission: Admission | None = None
    ) -> AsyncIterator[GenerateRequest]:
        """Return the request with the images of its chat that are not in its body: see `read_messages`."""
        if not isinstance(request.prompt, Chat):
            yield request
            return
        async with self.read_messages(request.prompt.messages, admission) as messages:
            yield replace(request, prompt=replace(request.prompt, messages=messages))

    @asynccontextmanager
    async def read_messages(
        self, messages: Sequence[Any], admission: Admission | None = None
    ) -> AsyncIterator[Sequence[Any]]:
        """Return messages with their images that are not in the body of the request: see `ImageReader.with_images`.

        A model that sees no images gets the messages as they are: `template_messages` refuses the images of a user.

        admission: that of the request; None for a request that computes nothing, which takes a place in the queue only
            if it has images to read.

        Raises RequestTimeoutError and UnavailableError if reading takes too long, and QueueFullError.
        """
        if not self.llm.llm.sees_images:
            yield messages
            return
        timeout = math.inf if self.settings.request_timeout is None else self.settings.request_timeout
        async with AsyncExitStack() as stack:
            admit: Admit = partial(self.admit, 1) if admission is None else nullcontext
            remaining = timeout if admission is None else admission.remaining(timeout)
            reading = stack.enter_async_context(self._images.with_images(messages, self.llm._prepare, admit))
            try:
                read = await run_with_timeout(min(remaining, PREPARE_TIMEOUT), reading)
            except asyncio.TimeoutError as error:
                raise (_timeout_error(timeout) if remaining <= PREPARE_TIMEOUT else _busy_error()) from error
            yield read

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
        _check_text(request.prompt)
        async with AsyncExitStack() as stack:
            admission = admission or stack.enter_context(self.admit(n))
            stack.callback(self._release, admission, n)
            request_metrics = self.metrics.start_request(request.prompt)
            timeout = self._timeout(request)
            remaining = admission.remaining(timeout)

            async def begin() -> tuple[AsyncCompletions, OutputFormat | None]:
                return await self._open(await stack.enter_async_context(self.read_images(request, admission)))

            try:
                source, output_format = await run_with_timeout(min(remaining, PREPARE_TIMEOUT), begin())
            except asyncio.TimeoutError as error:
                raise (_timeout_error(timeout) if remaining <= PREPARE_TIMEOUT else _busy_error()) from error
            note_left_out(left_out_keywords(request, output_format))
            async with source:
                _count_prompt_logprobs(admission, request.params, source.prompt_tokens)
                with request_metrics.started(source.prompt_tokens, n):
                    yield RunningRequest(
                        source,
                        output_format,
                        n,
                        self.settings.chunk_interval,
                        admission.arrival_time,
                        timeout,
                        request_metrics,
                        None if request.params.prompt_logprobs is None else partial(self._add_prompt_logprobs, source),
                    )

    async def _open(self, request: GenerateRequest) -> tuple[AsyncCompletions, OutputFormat | None]:
        """Prepare and submit a request. If the task is cancelled, a preparation that has started runs to its end."""
        output_format: OutputFormat | None = None

        def prepare() -> tuple[Prompt, SamplingParams]:
            nonlocal output_format
            prompt, params, output_format = prepare_request(self.llm.llm, request)
            return prompt, params

        max_unread = MAX_BUFFERED_PIECES if request.stream else None
        return await self.llm._open(prepare, max_unread=max_unread), output_format

    def apply_thinking_budget(self, request: GenerateRequest) -> GenerateRequest:
        """Return the request with its effective thinking budget, which is at most the server's budget.

        A chat without a thinking budget gets the budget that the server has for its reasoning effort. Budgets that are
        larger than the context limit nothing. Prompts that are not chats keep their own budget.
        """
        params, settings, n_ctx = request.params, self.settings, self.llm.llm.context.n_ctx
        budget = params.thinking_budget
        if isinstance(request.prompt, Chat):
            effort = (request.prompt.chat_template_kwargs or {}).get("reasoning_effort")
            limits = [
                settings.reasoning_budget,
                budget if budget is not None else settings.effort_budgets.get(str(effort)),
            ]
            budget = min((limit for limit in limits if limit is not None and limit <= n_ctx), default=None)
        elif budget is not None and budget > n_ctx:
            budget = None
        if budget is None and params.thinking_budget is None:
            return request
        message = "" if budget is None else settings.reasoning_budget_message
        return replace(request, params=replace(params, thinking_budget=budget, thinking_end=message))

    def _check_logprobs(self, params: SamplingParams) -> None:
        """Raise InvalidRequestError if the log-probabilities could take hundreds of megabytes."""
        if params.logprobs is not None:
            tokens = min(params.max_tokens or MAX_LOGPROB_VALUES, self.llm.llm.context.n_ctx)
            if params.n * tokens * (params.logprobs + 1) > MAX_LOGPROB_VALUES:
                raise InvalidRequestError(
                    f"n={params.n} completions of up to {tokens} tokens, with {params.logprobs} top log-probabilities "
                    f"for each token, could have more than {MAX_LOGPROB_VALUES} log-probabilities: reduce max_tokens"
                )

    async def _add_prompt_logprobs(self, source: AsyncCompletions) -> None:
        async with self._embedding:
            await source.add_prompt_logprobs()

    def _timeout(self, request: GenerateRequest) -> float:
        return min(math.inf if limit is None else limit for limit in (request.timeout, self.settings.request_timeout))


def _check_text(prompt: object) -> None:
    """Raise InvalidRequestError for a prompt with more text than MAX_TEXT_BYTES. Images are not prepared as text."""
    if isinstance(prompt, Chat):
        n = (current_caller.get() or Caller()).n_bytes
        if n > MAX_TEXT_BYTES:
            n -= sum(len(url) for message in prompt.messages for url in image_urls(message))
    else:
        n = len(prompt) if isinstance(prompt, str) else 0
    if n > MAX_TEXT_BYTES:
        raise InvalidRequestError(f"the request has {n} bytes of text; at most {MAX_TEXT_BYTES} are allowed")


def _count_prompt_logprobs(admission: Admission, params: SamplingParams, n_tokens: int) -> None:
    """Raise InvalidRequestError if those of all prompts of a request, now with n_tokens more, take too much memory."""
    if params.prompt_logprobs is None:
        return
    admission.prompt_logprobs += params.n * n_tokens * (params.prompt_logprobs + 1)
    if admission.prompt_logprobs > MAX_LOGPROB_VALUES:
        raise InvalidRequestError(
            f"the prompts have more than {MAX_LOGPROB_VALUES} log-probabilities, {params.prompt_logprobs + 1} for each "
            f"token, n={params.n} times: reduce logprobs or n, or send fewer prompts at once"
        )


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
        add_logprobs: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """arrival_time: the time of the event loop's clock when the request arrived.

        timeout: the number of seconds from the arrival after which the request is aborted.
        chunk_interval: the approximate number of seconds between two chunks of the stream.
        add_logprobs: computes the log-probabilities of the prompt; None if the request does not ask for them.
        """
        self._source, self._interval, self._arrival_time, self._timeout = source, chunk_interval, arrival_time, timeout
        self._metrics, self._add_logprobs = request_metrics, add_logprobs
        self._stopped = False
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

    def echo_logprobs(self) -> list[TokenLogprobs]:
        """Return the log-probabilities of the prompt, see `AsyncCompletions.echo_logprobs`."""
        return self._source.echo_logprobs()

    def stop(self) -> None:
        """End the completions early, as if they had reached their length; iteration yields their last deltas."""
        self._stopped = True
        self._source.close()

    def stats(self, index: int) -> Stats:
        """Return the statistics of a completion so far."""
        return self._source.stats(index)

    def completion(self, index: int) -> Completion:
        """Return one completion. Raises InvalidRequestError if it has not finished."""
        return self._source.completion(index)

    async def prompt_progress(self) -> AsyncIterator[PromptProgress]:
        """Yield how much of the prompt is computed, from its cached tokens to all, until the first token."""
        loop = asyncio.get_running_loop()
        shown = -1
        while loop.time() < self._arrival_time + self._timeout:
            now = self._source.prompt_progress()
            if now.processed and shown < 0:  # the number of cached tokens is known once the first tokens are there
                shown = now.cached
                yield now._replace(processed=shown, seconds=0.0)
            if now.processed > shown >= 0:
                shown = now.processed
                yield now
            if now.processed == now.total:
                return
            await self._source.wait_at_most(PROGRESS_SECONDS)

    async def outputs(self) -> list[Output]:
        """Wait until all completions have finished, and return their outputs. Raises the same errors as iteration."""
        reasons: dict[int, OutputFinishReason] = {}
        async for delta in self:
            if delta.reason is not None:
                reasons[delta.index] = delta.reason
        return [self._output(i, reason) for i, reason in sorted(reasons.items())]

    def output(self, index: int) -> Output:
        """Return the output of a completion whose last delta was read."""
        return self._output(index, output_finish_reason(self.completion(index).finish_reason, self._parsed(index)))

    def _output(self, index: int, reason: OutputFinishReason) -> Output:
        return Output(self.completion(index), self._parsed(index), reason)

    def _parsed(self, index: int) -> ParsedOutput | None:
        parser = self._parsers[index]
        return None if parser is None else parser.output

    async def __aiter__(self) -> AsyncIterator[CompletionDelta]:
        """Yield deltas with their events until all completions have finished.

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
            if self._add_logprobs is not None:
                try:
                    await run_with_timeout(self._arrival_time + self._timeout - loop.time(), self._add_logprobs())
                except asyncio.TimeoutError as error:
                    raise _timeout_error(self._timeout) from error
            while new_deltas := await self._source.take():
                if timed_out:
                    raise _timeout_error(self._timeout)
                for delta in new_deltas:
                    if delta.reason == "cancelled":
                        if not self._stopped:
                            raise cancelled_error()
                        delta.reason = "length"
                if n := sum(len(piece.token_ids) for delta in new_deltas for piece in delta.pieces):
                    self._metrics.on_tokens(n)
                n_finished = sum(delta.reason is not None for delta in new_deltas)
                n_unfinished -= n_finished
                if not n_unfinished:
                    self._metrics.on_finished(self._source.completions)
                for delta in new_deltas:
                    await self._parse(delta)
                    yield delta
                if self._interval and not n_finished:
                    # Pieces of the same interval are joined to one chunk. All streams wait for multiples of the
                    # interval, so that one wake-up of the process serves all clients: a wake-up costs more than
                    # writing to a client.
                    remaining = self._interval - loop.time() % self._interval
                    await asyncio.sleep(remaining if remaining > self._interval / 2 else remaining + self._interval)
        finally:
            if timer is not None:
                timer.cancel()

    async def _parse(self, delta: CompletionDelta) -> None:
        """Set the events of a delta, and its reason to "tool_calls" if the completion ended with calls."""
        index, start = delta.index, self._lengths[delta.index]
        text = "".join(piece.text for piece in delta.pieces)
        if delta.reason is not None and not start and not delta.pieces:
            # A completion without streaming has no pieces; its whole text is available at the end.
            text = self._source.completion(index).text
        parser = self._parsers[index]
        self._lengths[index] = start + len(text)
        if parser is None:
            delta.events = [ContentDelta(text, start, start + len(text))] if text else []
            return
        events: list[OutputEvent] = []
        for at in range(0, len(text), PARSE_SLICE):
            if at:
                await asyncio.sleep(0)
            events += parser.push(text[at : at + PARSE_SLICE])
        if delta.reason is not None:
            events += parser.finish()
            delta.reason = output_finish_reason(delta.reason, parser.output)
        delta.events = events
