"""/v1/completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pymtp.chat import Said
from pymtp.engine.request import Completion
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import Ask, Text
from pymtp.openai.requests import TEXT, read_ask, text_prompts
from pymtp.openai.responses import answer, drafting, head, prompt_text, text_logprobs, usage
from pymtp.server.admission import Admission
from pymtp.server.dependencies import CurrentService
from pymtp.server.http.ascii_json import AsciiJson
from pymtp.server.http.errors import stream_failure
from pymtp.server.http.responses_of import answers_of, ignored_header
from pymtp.server.http.sse import DONE, EventStream, while_there
from pymtp.server.openai.completion_types import CompletionRequest, TextCompletion
from pymtp.server.service import Service, Update

router = APIRouter(tags=["OpenAI"])


@router.post(TEXT, response_model=None, responses=answers_of(TextCompletion, TextCompletion))
async def completions(request: Request, body: CompletionRequest, service: CurrentService) -> Response:
    """Goes on with texts, as OpenAI's older clients ask for it."""
    service.check_model(body.model)
    asked = body.model_dump(exclude_unset=True, by_alias=True)
    ignored = ignored_header(TEXT, asked)
    prompts = text_prompts(asked)
    # once, and on a thread: a schema takes a while
    first = await service.prepare(lambda: read_ask(TEXT, asked | {"prompt": prompts[0]}, service.sampling))
    asks = [replace(first, prompt=prompt) for prompt in prompts]
    if asked.get("echo") and asked.get("logprobs") is not None:
        raise InvalidRequestError("echo: not supported beside logprobs, since prompts have none")
    if not asks[0].stream:
        return AsciiJson(await while_there(request, _whole(service, asks, asked)), headers=ignored)
    return EventStream(_events(service, _Running(service, asks), asked), stream_failure(TEXT), ignored)


async def _whole(service: Service, asks: Sequence[Ask], asked: dict[str, Any]) -> dict[str, Any]:
    n = asks[0].params.n
    places = _places(service, n)
    with service.admit(n * len(asks)) as admission:

        async def one(ask: Ask) -> list[Text]:
            async with places, service.answer(ask, admission) as answering:
                return await answering.whole()

        tasks = [asyncio.create_task(one(ask)) for ask in asks]
        try:
            each = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return answer(TEXT, asked, each, service.llm.llm.model, service.model_name)


def _places(service: Service, n: int) -> asyncio.Semaphore:
    """For as many of a request's prompts at once, of n texts each, as there are places: others have their turn between
    them."""
    return asyncio.Semaphore(max(1, service.llm.llm.context.n_seq_max // n))


class _Running:
    """Several prompts that are answered side by side."""

    def __init__(self, service: Service, asks: Sequence[Ask]) -> None:
        self._service, self._asks = service, asks
        self._done: list[list[Completion]] = [[] for _ in asks]

    @property
    def done(self) -> list[list[Completion]]:
        """Of each prompt its completions, once the last update was given out."""
        return self._done

    async def updates(self) -> AsyncGenerator[tuple[int, Update], None]:
        """Of each prompt, by its number. Raises what the first one fails by."""
        # one at a time: what comes while the client is slow is joined by each
        news: asyncio.Queue[tuple[int, Update | Exception]] = asyncio.Queue(1)
        n = self._asks[0].params.n
        places = _places(self._service, n)

        async def follow(i: int, ask: Ask, admission: Admission) -> None:
            left = n
            try:
                async with places, self._service.answer(ask, admission) as answering:
                    async for update in answering:
                        left -= update.finish_reason is not None
                        if not left:
                            self._done[i] = answering.completions
                        await news.put((i, update))
            except Exception as error:
                await news.put((i, error))

        left = n * len(self._asks)
        with self._service.admit(left) as admission:
            tasks = [asyncio.create_task(follow(i, ask, admission)) for i, ask in enumerate(self._asks)]
            try:
                while left:
                    i, new = await news.get()
                    if isinstance(new, Exception):
                        raise new
                    left -= new.finish_reason is not None
                    yield i, new
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _events(service: Service, running: _Running, asked: dict[str, Any]) -> AsyncIterator[bytes]:
    chunks = _Chunks(service, asked)
    async with aclosing(running.updates()) as updates:
        async for i, update in updates:
            if chunk := chunks.chunk(i, update, running):
                yield chunk
    yield chunks.usage(running) + DONE


class _Chunks:
    """The chunks of an answer."""

    def __init__(self, service: Service, asked: dict[str, Any]) -> None:
        self._model = service.llm.llm.model
        self._n = asked.get("n") or 1
        self._prompts = text_prompts(asked)
        self._echo = bool(asked.get("echo"))
        self._include_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        self._begin = b"data: " + json.dumps(head(TEXT, asked.get("model") or service.model_name)).encode()[:-1]
        self._lengths: dict[int, int] = {}
        self._left = self._n * len(self._prompts)

    def chunk(self, i: int, update: Update, running: _Running) -> bytes:
        """What is new of a text of the i-th prompt."""
        index = i * self._n + update.index
        start = self._lengths.get(index, 0)
        text = "".join(event.text for event in update.events if isinstance(event, Said))
        if self._echo and index not in self._lengths:
            text = prompt_text(self._prompts[i], self._model) + text
        each = [one for piece in update.pieces for one in piece.logprobs or ()]
        ended = update.finish_reason is not None
        self._lengths[index] = start + len(text)
        self._left -= ended
        if not text and not each and not ended:
            return b""
        logprobs = text_logprobs(each, self._model, start) if each else None
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": update.finish_reason}
        told = b', "usage": null' if self._include_usage else b"" if self._left else _drafting(running)
        return self._begin + b', "choices": [' + json.dumps(choice).encode() + b"]" + told + b"}\n\n"

    def usage(self, running: _Running) -> bytes:
        """The chunk without choices, where it was asked for."""
        if not self._include_usage:
            return b""
        said = json.dumps(usage(running.done)).encode()
        return self._begin + b', "choices": [], "usage": ' + said + _drafting(running) + b"}\n\n"


def _drafting(running: _Running) -> bytes:
    return b', "pymtp": ' + json.dumps(drafting([one for done in running.done for one in done])).encode()
