"""Requests, whatever API they came by, on an AsyncLLM: prompt, grammar, a bounded queue, time limits.

Knows nothing of HTTP. What an API asks for is an `Ask`; what comes of it are `Update`s.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pymtp.async_llm import AsyncLLM, AsyncTexts
from pymtp.chat import AnswerFormat, AnswerReader, Event, Said
from pymtp.context.memory import DeviceMemory
from pymtp.engine.request import Completion, FinishReason, Piece
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import Ask, EndReason, Text, end_reason, prepared
from pymtp.sampling import SamplingParams
from pymtp.server.admission import Admission, Admissions
from pymtp.server.budgets import within_budget
from pymtp.server.errors import OverdueError, UnavailableError, UnknownModelError
from pymtp.server.metrics.registry import Metrics, Watch
from pymtp.server.settings import Settings
from pymtp.server.timeouts import within
from pymtp.validation import shown

T = TypeVar("T")
# Seconds that a request may be looked at before it runs, the wait for a thread included. 16 MiB of spaces, the worst
# that fits into a body, take half of it.
PREPARING = 60.0
# Pieces of a text that may wait for a slow client. All of them: the request keeps its pieces anyway, and a text that is
# written to its end gives its place to others.
AHEAD = 2**31
MOST_LOGPROBS = 2**22  # that are kept for one request: each takes about 100 bytes
SLICE = 2048  # characters that are read before other requests have their turn: some take 10 microseconds each


@dataclass(frozen=True)
class Update:
    """What is new of a text. pieces: of a stream only. finish_reason: None while it goes on."""

    index: int
    events: list[Event]
    pieces: list[Piece]
    finish_reason: EndReason | None


class Service:
    """An AsyncLLM with what a server needs around it."""

    def __init__(self, llm: AsyncLLM, settings: Settings, metrics: Metrics) -> None:
        self.llm, self.settings, self.metrics = llm, settings, metrics
        self._admissions = Admissions(llm.llm.context.n_seq_max + settings.max_queue)
        self._memory: asyncio.Future[list[DeviceMemory]] | None = None
        metrics.serve(llm, self.model_name)

    @property
    def sampling(self) -> Mapping[str, Any]:
        """What a request leaves open, by the names of SamplingParams: the server's own, else the model's."""
        return {**self.llm.llm.sampling_defaults, **self.settings.sampling}

    @property
    def n_open(self) -> int:
        """Texts that run or wait."""
        return self._admissions.n_open

    @property
    def model_names(self) -> tuple[str, ...]:
        """All that the model is served by."""
        return self.settings.served_names or (self.llm.llm.model.path.stem,)

    @property
    def model_name(self) -> str:
        """The model's name in answers."""
        return self.model_names[0]

    def check_model(self, name: str | None) -> None:
        """Raises UnknownModelError for another name than those that the server was started with. Where it was started
        without any, clients may call the model as they like: there is no other."""
        if name is not None and self.settings.served_names and name not in self.settings.served_names:
            raise UnknownModelError(f"there is no model {shown(name)}: there is {', '.join(self.model_names)}")

    async def memory(self) -> list[DeviceMemory]:
        """What the model and the caches take, a line a device. Waits until the engine is between two steps: all who ask
        meanwhile wait for one thread, for requests need the others."""
        if self._memory is None or self._memory.done():
            llm = self.llm.llm
            self._memory = asyncio.ensure_future(self.llm.in_thread(lambda: llm.turns.between(llm, llm.context.memory)))
        return await asyncio.shield(self._memory)

    async def check(self) -> None:
        """Waits until the engine is between two steps. Raises NativeError where it can go on no more."""
        llm = self.llm.llm
        await self.llm.in_thread(lambda: llm.turns.between(llm, llm.context.check))

    def admit(self, texts: int) -> AbstractContextManager[Admission]:
        """Lets a request in that has several prompts, with all of its texts. Raises QueueFullError."""
        return self._admissions.admit(texts)

    async def prepare(self, call: Callable[[], T]) -> T:
        """What a call returns that looks at a request, on a thread. Raises UnavailableError where that takes long."""
        try:
            return await within(PREPARING, self.llm.prepare(call))
        except asyncio.TimeoutError as error:
            raise _busy() from error

    @asynccontextmanager
    async def answer(self, ask: Ask, admission: Admission | None = None) -> AsyncIterator[Answering]:
        """Runs a request, which ends where this is left.

        admission: of the request that the texts belong to, and that they make room for others of when they end; None
            for a request of its own.

        Raises QueueFullError, InvalidRequestError for what cannot be asked, ContextFullError, OverdueError,
        UnavailableError and ClosedError.
        """
        n = ask.params.n
        ask = self.within_budget(ask)
        self._check_logprobs(ask.params)
        with ExitStack() as stack:
            admission = admission or stack.enter_context(self.admit(n))
            stack.callback(admission.ended, n)
            watch = self.metrics.watch(ask.prompt)
            seconds = self._limit(ask)
            left = admission.begun + seconds - asyncio.get_running_loop().time()
            try:
                texts, form = await within(min(left, PREPARING), self._open(ask))
            except asyncio.TimeoutError as error:
                raise (_overdue(seconds) if left <= PREPARING else _busy()) from error
            async with texts:
                with watch.running(texts.prompt_tokens, n):
                    yield Answering(texts, form, n, self.settings.chunk_interval, admission.begun, seconds, watch)

    async def _open(self, ask: Ask) -> tuple[AsyncTexts, AnswerFormat | None]:
        """Where this is left, a thread goes on that has begun, and nobody waits for it."""
        prompt, params, form = await self.llm.prepare(lambda: prepared(self.llm.llm, ask))
        return await self.llm.open(prompt, params, ahead=AHEAD if ask.stream else None), form

    def within_budget(self, ask: Ask) -> Ask:
        """The request, with the budget of thinking that it has here."""
        return within_budget(ask, self.settings, self.llm.llm.context.n_ctx)

    def _check_logprobs(self, params: SamplingParams) -> None:
        """Raises InvalidRequestError where the log-probabilities of one request could take hundreds of megabytes."""
        if params.logprobs is not None:
            tokens = min(params.max_tokens or MOST_LOGPROBS, self.llm.llm.context.n_ctx)
            if params.n * tokens * (params.logprobs + 1) > MOST_LOGPROBS:
                raise InvalidRequestError(
                    f"n={params.n} texts of up to {tokens} tokens, each with {params.logprobs} log-probabilities, "
                    f"are more than {MOST_LOGPROBS}: a smaller max_tokens is right"
                )

    def _limit(self, ask: Ask) -> float:
        return min(math.inf if each is None else each for each in (ask.timeout, self.settings.request_timeout))


def _overdue(seconds: float) -> OverdueError:
    return OverdueError(f"the request took longer than {seconds:g} seconds")


def _busy() -> UnavailableError:
    return UnavailableError(f"the server was not done with looking at the request after {PREPARING:g} seconds", 5)


class Answering:
    """A request that runs: iterate over its updates. `completions` and `answers` once these are at their end."""

    def __init__(
        self,
        texts: AsyncTexts,
        form: AnswerFormat | None,
        n: int,
        interval: float,
        begun: float,
        seconds: float,
        watch: Watch,
    ) -> None:
        """interval: seconds between updates, at least. begun, seconds: the loop's time then, and what it may take."""
        self._texts, self._interval, self._begun, self._seconds = texts, interval, begun, seconds
        self._watch = watch
        self._readers: list[AnswerReader | None] = [None if form is None else form.reader() for _ in range(n)]
        self._lengths = [0] * n

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._texts.prompt_tokens

    @property
    def completions(self) -> list[Completion]:
        """Each text as a whole. Raises InvalidRequestError before the end."""
        return self._texts.completions

    @property
    def readers(self) -> list[AnswerReader | None]:
        """Of each text, as far as it came; None where the prompt was no chat."""
        return self._readers

    async def whole(self) -> list[Text]:
        """All texts, once they have ended. Raises as the iteration."""
        reasons: dict[int, EndReason] = {}
        async for update in self:
            if update.finish_reason is not None:
                reasons[update.index] = update.finish_reason
        return [
            Text(done, None if reader is None else reader.answer, reasons[i])
            for i, (done, reader) in enumerate(zip(self.completions, self._readers, strict=True))
        ]

    async def __aiter__(self) -> AsyncIterator[Update]:
        """Raises OverdueError, and what the request failed by."""
        loop = asyncio.get_running_loop()
        overdue: list[bool] = []

        def end() -> None:
            overdue.append(True)
            self._texts.close()

        timer = loop.call_at(self._begun + self._seconds, end) if self._seconds < math.inf else None
        unended = len(self._readers)
        try:
            while parts := await self._texts.take():
                if overdue:
                    raise _overdue(self._seconds)
                if any(part.reason == "cancelled" for part in parts):
                    raise UnavailableError("the server ended the request", retry_after=5)
                if n := sum(len(piece.token_ids) for part in parts for piece in part.pieces):
                    self._watch.tokens(n)
                unended -= sum(part.reason is not None for part in parts)
                if not unended:
                    self._watch.ended(self._texts.completions)
                for part in parts:
                    yield await self._update(part.index, part.pieces, part.reason)
                if self._interval and all(part.reason is None for part in parts):
                    # What comes meanwhile is one chunk: a client gains nothing by more of them. All streams go on at
                    # the same moments: to wake the process takes longer than to write to one client more.
                    left = self._interval - loop.time() % self._interval
                    await asyncio.sleep(left if left > self._interval / 2 else left + self._interval)
        finally:
            if timer is not None:
                timer.cancel()

    async def _update(self, index: int, pieces: list[Piece], reason: FinishReason | None) -> Update:
        text = "".join(piece.text for piece in pieces)
        if reason is not None and not self._lengths[index] and not pieces:
            text = self._texts.completion(index).text  # nothing was handed out before
        reader = self._readers[index]
        start = self._lengths[index]
        self._lengths[index] += len(text)
        if reader is None:
            events: list[Event] = [Said(text, start, start + len(text))] if text else []
            return Update(index, events, pieces, reason)
        events = []
        for at in range(0, len(text), SLICE):
            if at:
                await asyncio.sleep(0)
            events += reader.push(text[at : at + SLICE])
        if reason is not None:
            events += reader.finish()
            return Update(index, events, pieces, end_reason(reason, reader))
        return Update(index, events, pieces, None)
