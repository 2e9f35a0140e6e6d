"""The same for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pymtp.chat import Chat, Message, Tools
from pymtp.engine.collect import collected
from pymtp.engine.engine_stats import Figures
from pymtp.engine.prefix_files import Path, Prompt, committed
from pymtp.engine.request import Completion, FinishReason, Piece, Request
from pymtp.engine.scheduler import READ_AHEAD
from pymtp.engine.thread import Driver, News
from pymtp.errors import ClosedError, InvalidRequestError
from pymtp.hub.from_pretrained import FromHub
from pymtp.llm import LLM, Params, check_stream, is_prompt
from pymtp.model.model import Model
from pymtp.native.locking import tell_of_forks
from pymtp.prefix_cache.save import PrefixSaver
from pymtp.sampling import SamplingParams

T = TypeVar("T")
PREPARERS = 4  # threads that look at new requests: more would take the processor from those that run


class AsyncLLM(FromHub):
    """An LLM for coroutines: `await generate`, `async for` over `stream`. All requests run together, on one thread of
    the AsyncLLM. A task that is cancelled ends its requests, and no others.

    Several event loops may use it. `llm` is the LLM itself; its calls from other threads run beside these. A child
    made by fork does not have its threads: calls raise ClosedError there.
    """

    def __init__(self, model: str | os.PathLike[str] | Model | LLM | None = None, **keywords: Any) -> None:
        """model, keywords: of LLM; or an LLM, which stays open after close()."""
        if isinstance(model, LLM) and keywords:
            raise InvalidRequestError(f"an LLM is made already: {', '.join(keywords)} must be given to it")
        self._shares_llm = isinstance(model, LLM)
        self.llm = model if isinstance(model, LLM) else LLM(model, **keywords, _times_later=True)
        llm = self.llm  # the thread keeps the LLM, and not the AsyncLLM
        self._driver = Driver(llm, llm.turns, llm.first_launches, lambda: llm.context)
        # its own, for all that asyncio has may be busy with other things
        self._threads = ThreadPoolExecutor(thread_name_prefix="pymtp")
        # apart: long prompts and large grammars hold up each other, and nothing else
        self._preparers = ThreadPoolExecutor(PREPARERS, "pymtp prepare")
        self._process = os.getpid()
        tell_of_forks(self)
        weakref.finalize(self, self._driver.let_go)

    @classmethod
    def _parameters(cls) -> Collection[str]:
        return LLM._parameters()

    async def close(self) -> None:
        """Ends what runs as "cancelled", and frees everything."""
        if not self._forked:
            await self.in_thread(self._close)

    async def in_thread(self, call: Callable[[], T]) -> T:
        """What a call returns that takes a while, on a thread of the AsyncLLM."""
        return await self._run_on(self._threads, call)

    async def prepare(self, call: Callable[[], T]) -> T:
        """As in_thread, for what comes before a request runs: templates, tokens, grammars. These calls have threads of
        their own, PREPARERS of them, and wait for each other. One that has not begun when its task is cancelled never
        does."""
        return await self._run_on(self._preparers, call)

    async def _run_on(self, threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        if self._forked:
            raise ClosedError("this process was forked, and the AsyncLLM's threads are not here: make a new one")
        return await asyncio.get_running_loop().run_in_executor(threads, call)

    def leave_behind(self) -> None:
        """Of forks.Left."""
        self._driver.leave_behind()

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._process  # C code may have forked, which nobody is told of

    def _close(self) -> None:
        self._driver.stop()
        if not self._shares_llm:
            self.llm.close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def figures(self) -> Figures:
        """As LLM.figures."""
        return self.llm.figures()

    def get_default_sampling_params(self) -> SamplingParams:
        """As LLM.get_default_sampling_params."""
        return self.llm.get_default_sampling_params()

    @overload
    async def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt, params: Params = None, *, priority: int = 0
    ) -> Completion: ...
    @overload
    async def generate(
        self, prompts: Sequence[Prompt], params: Params = None, *, priority: int = 0
    ) -> list[Completion]: ...

    async def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, priority: int = 0
    ) -> Completion | list[Completion]:
        """As LLM.generate."""
        one = is_prompt(prompts)
        news = News()
        requests = await self._submit([prompts] if one else prompts, params, news, priority=priority)  # type: ignore[list-item, arg-type]
        try:
            while news.caller.unended:
                await news.wait()
        finally:
            self._driver.cancel(requests)
        completions = collected(requests)
        return completions[0] if one else completions

    async def open(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        ahead: int | None = READ_AHEAD,
    ) -> AsyncTexts:
        """Begins the texts of a prompt, `SamplingParams.n` of them, which run until it is closed.

        ahead: pieces of a text that may wait to be taken; a text that has as many pauses. None: no pieces are handed
            out, all is in `completions` at the end.

        Raises what `generate` raises before the first token.
        """
        news = News()
        requests = await self._submit([prompt], params, news, priority=priority, ahead=ahead)
        return AsyncTexts(self._driver, requests, news)

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> AsyncIterator[Piece]:
        """Generates piece by piece, as LLM.stream; an iteration that is left ends the request."""
        check_stream(params)
        news = News()
        requests = await self._submit([prompt], params, news, priority=priority, ahead=READ_AHEAD)
        (request,) = requests
        try:
            while True:
                while not request.unread and not request.ended:
                    await news.wait()
                if not request.unread:
                    break
                piece = request.unread.popleft()
                self._driver.wake()  # it may have waited for its reader
                yield piece
        finally:
            self._driver.cancel(requests)
        if (error := request.failure()) is not None:
            raise error

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
    ) -> Completion:
        """As LLM.chat."""
        params = self.get_default_sampling_params() if params is None else params
        return await self.generate(Chat(messages, tools, chat_template_kwargs), params, priority=priority)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
    ) -> AsyncIterator[Piece]:
        """As LLM.stream_chat."""
        params = self.get_default_sampling_params() if params is None else params
        return self.stream(Chat(messages, tools, chat_template_kwargs), params, priority=priority)

    async def save_prefix(self, prompt: Prompt | Sequence[Message], path: Path, *, priority: int = 0) -> int:
        """As LLM.save_prefix. A task that is cancelled leaves the old file, or the new one."""
        news = News()
        with PrefixSaver() as saver:
            await self.in_thread(lambda: self.llm.open_saver(saver, prompt, path))
            requests = await self._submit([saver.tokens], None, news, priority=priority, saver=saver)
            try:
                while news.caller.unended:
                    await news.wait()
            finally:
                self._driver.cancel(requests)
            return await self.in_thread(lambda: committed(saver, requests))

    async def load_prefix(self, path: Path) -> int:
        """As LLM.load_prefix."""
        return await self.in_thread(lambda: self.llm.load_prefix(path))

    async def _submit(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        news: News,
        *,
        priority: int,
        ahead: int | None = None,
        saver: PrefixSaver | None = None,
    ) -> list[Request]:
        found: list[Request] = []
        left = False

        def ask() -> None:
            self.llm.requests(prompts, params, news.caller, priority=priority, ahead=ahead, into=found, saver=saver)
            self._driver.take(found)
            if left:  # set before the other thread looks at `found`: one of the two cancels
                self._driver.cancel(found)

        try:
            await self.prepare(ask)  # a long prompt takes a while to tokenize
        except BaseException:  # the thread goes on, though its task was cancelled
            left = True
            self._driver.cancel(found)
            raise
        return found


@dataclass(frozen=True)
class TextPart:
    """What is new of a text: pieces that were not taken yet. reason: why it ended; None while it goes on."""

    index: int
    pieces: list[Piece]
    reason: FinishReason | None


class AsyncTexts:
    """The texts of one prompt while they are written. One coroutine at a time may take from it."""

    def __init__(self, driver: Driver, requests: list[Request], news: News) -> None:
        self._driver, self._requests, self._news = driver, requests, news
        self._live = dict(enumerate(requests))  # whose end was not taken

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._requests[0].prompt)

    async def take(self) -> list[TextPart]:
        """Waits for something new, and takes all that is there; nothing once all ends were taken. Raises the error that
        a text failed by, in place of its end."""
        while self._live:
            parts = []
            for index, request in list(self._live.items()):
                reason = request.reason  # before the pieces: with a reason, all of them are there
                pieces = list(_taken(request))
                if reason is not None:
                    del self._live[index]
                    if (error := request.failure()) is not None:
                        raise error
                if pieces or reason is not None:
                    parts.append(TextPart(index, pieces, reason))
            if parts:
                self._driver.wake()  # a text may have waited for its reader
                return parts
            await self._news.wait()
        return []

    @property
    def completions(self) -> list[Completion]:
        """Each text as a whole, once all have ended. Raises InvalidRequestError before."""
        return [request.completion for request in self._requests]

    def completion(self, index: int) -> Completion:
        """One text as a whole, once it has ended. Raises InvalidRequestError before."""
        return self._requests[index].completion

    def close(self) -> None:
        """Ends what still runs as "cancelled", within a ubatch."""
        self._driver.cancel(self._requests)

    async def __aenter__(self) -> AsyncTexts:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # where __init__ was broken off
            self._driver.cancel(self._requests)  # nobody will read them


def _taken(request: Request) -> Iterator[Piece]:
    while request.unread:
        yield request.unread.popleft()
