"""The AsyncLLM: an LLM for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from pymtp.chat import Chat, GivenToolChoice, Message, Tools
from pymtp.chat.images import with_image_paths
from pymtp.engine.deltas import CompletionDelta, PromptProgress
from pymtp.engine.embedder import Pooling
from pymtp.engine.keywords import SamplingKeywords, with_keywords
from pymtp.engine.logprobs import echo_logprobs
from pymtp.engine.prefix_files import Path, commit_saver
from pymtp.engine.prepare import Params, Prompt
from pymtp.engine.preparers import Preparers
from pymtp.engine.request import Completion, Piece, Request, Waiter, collect_completions
from pymtp.engine.scheduler import MAX_UNREAD_PIECES
from pymtp.engine.stream import PieceParser
from pymtp.engine.thread import EngineThread
from pymtp.errors import ClosedError, InvalidRequestError
from pymtp.hub.from_pretrained import HubMixin
from pymtp.llm import LLM, check_stream, is_prompt
from pymtp.model.model import Model
from pymtp.options import LLMOptions, read_options
from pymtp.prefix_cache.save import PrefixSaver
from pymtp.sampling import SamplingParams, TokenLogprobs
from pymtp.stats import Figures, Stats

if TYPE_CHECKING:  # it takes time to import
    from pymtp.openai.in_process import Answerer, ChatWriter, TextWriter

T = TypeVar("T")
PREPARERS = 4  # threads that prepare new requests: more would take the processor from running requests


class AsyncWakeup:
    """An event that the engine's thread sets and a coroutine waits for.

    waiter: the waiter of the requests that set the event.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_set = False  # from the time when the loop is asked to set the event until `wait` returns
        self.waiter = Waiter(self._set)

    def _set(self) -> None:
        if self._is_set:
            return
        self._is_set = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop is closed: no coroutine waits
            return

    async def wait(self) -> None:
        """Wait until the event is set, and reset it."""
        await self._event.wait()
        self._event.clear()
        # reset before the coroutine looks at its requests: it would miss a change between the look and the reset
        self._is_set = False

    async def wait_at_most(self, seconds: float) -> None:
        """Wait until the event is set, but no longer than `seconds`. Does not reset the event."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)


class AsyncLLM(HubMixin):
    """An LLM for coroutines: `await llm.generate(…)`, and `async for piece in llm.stream(…)`.

        async with pymtp.AsyncLLM("model.gguf", n_seq_max=8) as llm:
            completion = await llm.generate("def fibonacci(n):")

    The methods take the arguments of LLM's, return the same results and raise the same errors. All requests run in one
    batch, up to n_seq_max at once, on the thread of its LLM. A cancelled task cancels only its own requests.

    Several event loops may use one AsyncLLM. Other threads may call the methods of `llm` at the same time. A child
    process made by fork does not have the threads of the AsyncLLM: calls raise ClosedError in the child.

    llm: the LLM that runs the requests.
    """

    def __init__(self, model: str | os.PathLike[str] | Model | LLM | None = None, **keywords: Any) -> None:
        """
        Load a model, or use an existing LLM.

        model, keywords: the arguments of LLM. Or `model` is an LLM, without keywords: close() leaves that LLM open.

        Raises the errors of LLM, and InvalidRequestError for an LLM with keywords.
        """
        if isinstance(model, LLM) and keywords:
            raise InvalidRequestError(f"the LLM exists already: give {', '.join(keywords)} to LLM(…)")
        if isinstance(model, LLM):
            self._begin(model, shares_llm=True)
        else:
            self._begin(LLM.from_options(read_options("AsyncLLM()", model, keywords), warm_up_later=True))

    @classmethod
    def from_options(cls, options: LLMOptions) -> AsyncLLM:
        """Load the model of options that are made already. Raises the errors of LLM."""
        llm = cls.__new__(cls)
        llm._begin(LLM.from_options(options, warm_up_later=True))
        return llm

    def _begin(self, llm: LLM, *, shares_llm: bool = False) -> None:
        self.llm, self._shares_llm = llm, shares_llm
        self._engine_thread = self.llm._engine_thread
        self._engine_thread.warm_up_when_idle()
        self._requests: WeakSet[Request] = WeakSet()  # those of this AsyncLLM, which close() cancels
        self._requests_lock = threading.Lock()
        self._closed = False
        # not asyncio's default threads: the program may keep all of them busy
        self._threads = ThreadPoolExecutor(thread_name_prefix="pymtp")
        # a separate pool: long prompts and large grammars delay other preparations, but no close(), save or load
        self._preparers = Preparers(PREPARERS, "pymtp prepare")
        self._process = os.getpid()

    async def close(self) -> None:
        """Cancel the running requests, and close the LLM unless it was passed in."""
        if not self._forked:
            await self._in_thread(self._close)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run a slow call on a thread of the AsyncLLM, and return its result. Private to pymtp: the server uses it."""
        return await self._run_on(self._threads, call)

    async def _prepare(self, call: Callable[[], T]) -> T:
        """Run a call that prepares a request (template, tokens, grammar) on one of PREPARERS threads, see Preparers.

        Private to pymtp: the server uses it. At most PREPARERS of these calls run at once. If the task is cancelled
        before its call begins, the call is dropped.
        """
        return await self._run_on(self._preparers, call)

    async def _run_on(self, threads: Executor, call: Callable[[], T]) -> T:
        if self._forked:
            raise ClosedError("this process was forked, and the AsyncLLM's threads are not here: make a new one")
        # with the context of the task, which says who the caller is
        return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, call)

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._process  # Python's fork hooks do not see a fork in C code

    def _close(self) -> None:
        self._closed = True
        with self._requests_lock:
            requests = list(self._requests)
        self._engine_thread.cancel(requests)
        if self._shares_llm:
            with suppress(ClosedError):
                self._engine_thread.call(lambda: None)  # between two steps, when the cancelled requests have ended
        else:
            self.llm.close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def figures(self) -> Figures:
        """Return the counters of the engine, see `LLM.figures`."""
        return self.llm.figures()

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the params that `chat` uses by default, see `LLM.get_default_sampling_params`."""
        return self.llm.get_default_sampling_params()

    @overload
    async def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt, params: Params = None, *, priority: int = 0, **keywords: Unpack[SamplingKeywords]
    ) -> Completion: ...
    @overload
    async def generate(
        self,
        prompts: Sequence[Prompt],
        params: Params = None,
        *,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> list[Completion]: ...

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> Completion | list[Completion]:
        """Generate the completion of one prompt, or a list of completions for a list of prompts; see `LLM.generate`."""
        if keywords:
            params = with_keywords("AsyncLLM.generate", params, keywords)
        single = is_prompt(prompts)
        wakeup = AsyncWakeup()
        requests = await self._submit([prompts] if single else prompts, params, wakeup, priority=priority)  # type: ignore[list-item, arg-type]
        try:
            await self._add_prompt_logprobs(requests)
            while wakeup.waiter.n_unfinished:
                await wakeup.wait()
        finally:
            self._engine_thread.cancel(requests)
        completions = collect_completions(requests)
        return completions[0] if single else completions

    async def _open(
        self,
        prompt: Prompt | Callable[[], tuple[Prompt, SamplingParams]],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        max_unread: int | None = MAX_UNREAD_PIECES,
    ) -> AsyncCompletions:
        """Start the completions of a prompt, `SamplingParams.n` of them, and return them while they are generated.

        Private to pymtp: the server uses it. The completions run until their end, or until the AsyncCompletions is
        closed.

        prompt: or a function that makes the prompt and the params, on the thread that submits them.
        max_unread: the largest number of untaken pieces of a completion, which pauses at that number. With None, there
            are no pieces: the whole completions are in `AsyncCompletions.completions` at the end.

        Raises the errors of `generate`, before the first token is generated.
        """
        wakeup = AsyncWakeup()

        def make() -> tuple[list[Prompt], Params]:
            made, own = prompt() if callable(prompt) else (prompt, params)
            return [made], own

        requests = await self._submit(make, None, wakeup, priority=priority, max_unread=max_unread)
        return AsyncCompletions(self._engine_thread, requests, wakeup, self._add_prompt_logprobs)

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> AsyncIterator[Piece]:
        """Generate the completion of one prompt piece by piece, see `LLM.stream`.

        The request is cancelled when the iterator is closed before its end.
        """
        if keywords:
            params = with_keywords("AsyncLLM.stream", params, keywords)
        check_stream(params)
        wakeup = AsyncWakeup()
        requests = await self._submit([prompt], params, wakeup, priority=priority, max_unread=MAX_UNREAD_PIECES)
        (request,) = requests
        parser = None if request.output_format is None else PieceParser(request.output_format)
        try:
            await self._add_prompt_logprobs(requests)
            while True:
                while not request.unread and not request.ended:
                    await wakeup.wait()
                if not request.unread:
                    break
                piece = request.unread.popleft()
                self._engine_thread.wake()  # the request may have paused until its pieces were read
                yield piece if parser is None else parser.parse(piece)
        finally:
            self._engine_thread.cancel(requests)
        if (error := request.error_copy()) is not None:
            raise error
        if parser is not None and (last := parser.finish()) is not None:
            yield last

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        tool_choice: GivenToolChoice = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> Completion:
        """Generate the assistant's next message in a chat, see `LLM.chat`."""
        params = with_keywords("AsyncLLM.chat", params, keywords, self.get_default_sampling_params)
        chat = Chat(with_image_paths(messages), tools, chat_template_kwargs, tool_choice)
        return await self.generate(chat, params, priority=priority)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        tool_choice: GivenToolChoice = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> AsyncIterator[Piece]:
        """Generate the assistant's next message piece by piece, see `LLM.stream_chat`."""
        params = with_keywords("AsyncLLM.stream_chat", params, keywords, self.get_default_sampling_params)
        chat = Chat(with_image_paths(messages), tools, chat_template_kwargs, tool_choice)
        return self.stream(chat, params, priority=priority)

    async def create_chat_completion(self, messages: Sequence[Message], **fields: Any) -> Any:
        """Answer a chat with OpenAI's dict; with stream=True, return an async iterator over its chunks.

        See `LLM.create_chat_completion`. The request is cancelled when the iterator is closed before its end.
        """
        return await self._create("create_chat_completion", "/v1/chat/completions", {"messages": messages, **fields})

    async def create_completion(self, prompt: str | Sequence[int], **fields: Any) -> Any:
        """Answer a prompt with OpenAI's dict; with stream=True, return an async iterator over its chunks.

        See `LLM.create_completion` and `create_chat_completion`.
        """
        return await self._create("create_completion", "/v1/completions", {"prompt": prompt, **fields})

    async def _create(self, name: str, url: str, fields: Mapping[str, Any]) -> Any:
        def read() -> Answerer:
            from pymtp.openai.in_process import Answerer  # many programs do without, and it takes time to import

            return Answerer(self.llm, f"AsyncLLM.{name}", url, fields)

        call = await self._prepare(read)
        if not call.stream:
            completion = await self.generate(call.prompt, call.params)
            return await self._in_thread(lambda: call.answer(completion))
        check_stream(call.params)
        with_prompt = call.params.prompt_logprobs is not None
        return self._chunks(await self._open(call.prompt, call.params), call.writer(), with_prompt)

    async def _chunks(
        self, completions: AsyncCompletions, writer: ChatWriter | TextWriter, with_prompt: bool
    ) -> AsyncIterator[dict[str, Any]]:
        async with completions:
            await completions.add_prompt_logprobs()
            while deltas := await completions.take():
                for delta in deltas:
                    write = partial(writer.write, delta.pieces, completions.echo_logprobs)
                    # the log-probabilities of a long prompt take time to write
                    for chunk in await self._in_thread(write) if with_prompt else write():
                        yield chunk
            for chunk in writer.end(completions.completion(0), completions.echo_logprobs):
                yield chunk

    async def embed(self, prompts: Prompt | Sequence[Prompt], *, pooling: Pooling = "last") -> NDArray[np.float32]:
        """Compute the embedding of one prompt, or of a list of prompts; see `LLM.embed`.

        If the task is cancelled, the computation ends soon.
        """
        stopped = threading.Event()
        try:
            return await self._in_thread(lambda: self.llm._embed(prompts, pooling, stopped.is_set))
        finally:
            stopped.set()

    async def _add_prompt_logprobs(self, requests: Sequence[Request]) -> None:
        """Compute the log-probabilities of prompts for the requests that ask for them, while the requests run."""
        if any(request.params.prompt_logprobs is not None for request in requests):
            stopped = threading.Event()
            try:
                await self._in_thread(lambda: self.llm._add_prompt_logprobs(requests, stopped.is_set))
            finally:
                stopped.set()

    async def save_prefix(self, prompt: Prompt | Sequence[Message], path: Path, *, priority: int = 0) -> int:
        """Prefill a prompt, save its state to a file, and return its number of tokens; see `LLM.save_prefix`.

        If the task is cancelled, `path` is either the unchanged old file or the complete new file.
        """
        wakeup = AsyncWakeup()
        with PrefixSaver() as saver:
            prefix = await self._in_thread(lambda: self.llm._prefix_files.open_saver(saver, prompt, path))
            requests = await self._submit([prefix], None, wakeup, priority=priority, saver=saver)
            try:
                while wakeup.waiter.n_unfinished:
                    await wakeup.wait()
            finally:
                self._engine_thread.cancel(requests)
            return await self._in_thread(lambda: commit_saver(saver, requests))

    async def load_prefix(self, path: Path) -> int:
        """Load the state of a saved prompt, and return its number of tokens; see `LLM.load_prefix`."""
        return await self._in_thread(lambda: self.llm.load_prefix(path))

    async def _submit(
        self,
        prompts: Sequence[Prompt] | Callable[[], tuple[Sequence[Prompt], Params]],
        params: Params,
        wakeup: AsyncWakeup,
        *,
        priority: int,
        max_unread: int | None = None,
        saver: PrefixSaver | None = None,
    ) -> list[Request]:
        requests: list[Request] = []
        abandoned = False

        def make() -> None:
            given = prompts() if callable(prompts) else (prompts, params)
            made = self.llm._make_requests(*given, wakeup.waiter, priority=priority, max_unread=max_unread, saver=saver)
            submit(made)

        def submit(made: list[Request]) -> None:
            with self._requests_lock:
                self._requests.update(made)
            self._engine_thread.submit(made)
            requests.extend(made)
            # read now: a task or a close() that came before the next line has not cancelled these requests
            if abandoned or self._closed:
                self._engine_thread.cancel(made)
            if self._closed:
                raise ClosedError("the AsyncLLM is closed")

        try:
            await self._prepare(make)  # tokenizing a long prompt is slow
        except BaseException:  # the call goes on in its thread after the task was cancelled
            abandoned = True
            self._engine_thread.cancel(requests)
            raise
        return requests


class AsyncCompletions:
    """The completions of one prompt while they are generated. Only one coroutine at a time may call `take`."""

    def __init__(
        self,
        engine_thread: EngineThread,
        requests: list[Request],
        wakeup: AsyncWakeup,
        add_logprobs: Callable[[Sequence[Request]], Awaitable[None]],
    ) -> None:
        """add_logprobs: computes the log-probabilities of the requests' prompts."""
        self._engine_thread, self._requests, self._wakeup = engine_thread, requests, wakeup
        self._add_logprobs = add_logprobs
        self._live = dict(enumerate(requests))  # completions whose last delta `take` has not returned

    @property
    def prompt_tokens(self) -> int:
        """Return the number of tokens of the prompt."""
        return len(self._requests[0].prompt)

    async def add_prompt_logprobs(self) -> None:
        """Compute the log-probabilities of the prompt. Takes a thread; ends soon if the task is cancelled."""
        await self._add_logprobs(self._requests)

    def echo_logprobs(self) -> list[TokenLogprobs]:
        """Return the log-probabilities of the prompt, see `echo_logprobs`; none before `add_prompt_logprobs` ended."""
        return echo_logprobs(self._requests[0].prompt, self._requests[0].prompt_logprobs)

    async def take(self) -> list[CompletionDelta]:
        """Wait until completions have new pieces or have ended, and return their deltas.

        Returns an empty list after the last deltas of all completions. Raises the error of a completion that failed, in
        place of its last delta.
        """
        while self._live:
            parts = []
            for index, request in list(self._live.items()):
                reason = request.finish_reason  # before the pieces: later ones would be lost
                pieces = list(_taken(request))
                if reason is not None:
                    del self._live[index]
                    if (error := request.error_copy()) is not None:
                        raise error
                if pieces or reason is not None:
                    parts.append(CompletionDelta(index, pieces, reason))
            if parts:
                self._engine_thread.wake()  # a request may have paused until its pieces were read
                return parts
            await self._wakeup.wait()
        return []

    def stats(self, index: int) -> Stats:
        """Return the statistics of a completion so far."""
        return self._requests[index].stats

    def prompt_progress(self) -> PromptProgress:
        """Return how much of the prompt is computed."""
        first = self._requests[0]
        state, total = first.prefill_state, len(first.prompt)  # the state is read once: the engine may replace it
        begun = any(request.tokens or request.ended for request in self._requests)
        processed = total if begun else 0 if state is None else state.n_computed
        seconds = time.perf_counter() - first.start_time if first.start_time else 0.0
        return PromptProgress(total, first.cached_tokens, processed, seconds)

    async def wait_at_most(self, seconds: float) -> None:
        """Wait until `take` has something to return, but no longer than `seconds`."""
        await self._wakeup.wait_at_most(seconds)

    @property
    def completions(self) -> list[Completion]:
        """Return all completions. Raises InvalidRequestError before all have ended."""
        return [request.completion for request in self._requests]

    def completion(self, index: int) -> Completion:
        """Return one completion. Raises InvalidRequestError before it has ended."""
        return self._requests[index].completion

    def close(self) -> None:
        """Cancel the completions that have not ended; they end after the current ubatch."""
        self._engine_thread.cancel(self._requests)

    async def __aenter__(self) -> AsyncCompletions:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # __init__ may have been interrupted
            self._engine_thread.cancel(self._requests)  # nobody can read the completions any more


def _taken(request: Request) -> Iterator[Piece]:
    while request.unread:
        yield request.unread.popleft()
