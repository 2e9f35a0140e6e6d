"""/v1/completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from pymtp.asks import Ask, Text
from pymtp.engine.request import Completion
from pymtp.errors import InvalidRequestError
from pymtp.openai_answers import answer, drafting, head, prompt_text, text_logprobs, usage
from pymtp.openai_format import TEXT, read_ask, text_prompts
from pymtp.server.completion_types import CompletionRequest, TextCompletion
from pymtp.server.current import CurrentService
from pymtp.server.errors import stream_failure
from pymtp.server.responses_of import answers_of, ignored_header
from pymtp.server.service import Answering, Service, Update
from pymtp.server.sse import DONE, EventStream, while_there

router = APIRouter(tags=["OpenAI"])


@router.post(TEXT, response_model=None, responses=answers_of(TextCompletion, TextCompletion))
async def completions(request: Request, body: CompletionRequest, service: CurrentService) -> Response:
    """Goes on with texts, as OpenAI's older clients ask for it."""
    service.check_model(body.model)
    asked = body.model_dump(exclude_unset=True, by_alias=True)
    ignored = ignored_header(TEXT, asked)
    prompts = text_prompts(asked)
    asks = [read_ask(TEXT, asked | {"prompt": prompt}) for prompt in prompts]
    if asked.get("echo") and asked.get("logprobs") is not None:
        raise InvalidRequestError("echo: not supported beside logprobs, since prompts have none")
    if not asks[0].stream:
        return JSONResponse(await while_there(request, _whole(service, asks, asked)), headers=ignored)
    running = _Running(service)
    try:
        for ask in asks:
            await running.add(ask)
    except BaseException:
        await running.close()
        raise
    return EventStream(_events(service, running, asked), stream_failure(TEXT), ignored)


async def _whole(service: Service, asks: Sequence[Ask], asked: dict[str, Any]) -> dict[str, Any]:
    async def one(ask: Ask) -> list[Text]:
        async with service.answer(ask) as answering:
            return await answering.whole()

    tasks = [asyncio.create_task(one(ask)) for ask in asks]
    try:
        each = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return answer(TEXT, asked, each, service.llm.llm.model, service.model_name)


class _News(NamedTuple):
    """Of a prompt: an update, or how it ended."""

    prompt: int
    update: Update | None
    error: BaseException | None = None


class _Running:
    """Several prompts that are answered side by side."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stack = AsyncExitStack()
        self.each: list[Answering] = []

    async def add(self, ask: Ask) -> None:
        """Begins one. Raises as Service.answer."""
        self.each.append(await self._stack.enter_async_context(self._service.answer(ask)))

    async def close(self) -> None:
        """Ends all."""
        await self._stack.aclose()

    async def updates(self) -> AsyncIterator[tuple[int, Update]]:
        """Of each prompt, by its number. Raises what the first one fails by."""
        # one at a time: what comes while the client is slow is joined by each
        news: asyncio.Queue[_News] = asyncio.Queue(1)

        async def follow(i: int) -> None:
            try:
                async for update in self.each[i]:
                    await news.put(_News(i, update))
            except Exception as error:
                await news.put(_News(i, None, error))
            else:
                await news.put(_News(i, None))

        tasks = [asyncio.create_task(follow(i)) for i in range(len(self.each))]
        try:
            left = len(tasks)
            while left:
                i, update, error = await news.get()
                if error is not None:
                    raise error
                if update is None:
                    left -= 1
                else:
                    yield i, update
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _events(service: Service, running: _Running, asked: dict[str, Any]) -> AsyncIterator[bytes]:
    model = service.llm.llm.model
    n = asked.get("n") or 1
    include_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
    begin = b"data: " + json.dumps(head(TEXT, asked.get("model") or service.model_name)).encode()[:-1]
    prompts = text_prompts(asked)
    lengths: dict[int, int] = {}
    left = n * len(running.each)

    def told(last: bool) -> bytes:
        """The end of a chunk."""
        usage_ = b', "usage": null' if include_usage else b""
        return usage_ + (_drafting(running) if last and not include_usage else b"") + b"}\n\n"

    try:
        async for i, update in running.updates():
            index = i * n + update.index
            text = "".join(event.text for event in update.events)  # type: ignore[union-attr]
            if index not in lengths and asked.get("echo"):
                text = prompt_text(prompts[i], model) + text
            each = [one for piece in update.pieces for one in piece.logprobs or ()]
            logprobs = text_logprobs(each, model, lengths.get(index, 0)) if each else None
            lengths[index] = lengths.get(index, 0) + len(text)
            ended = update.finish_reason is not None
            left -= ended
            if text or ended or each:
                choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": update.finish_reason}
                yield begin + b', "choices": [' + json.dumps(choice).encode() + b"]" + told(ended and not left)
        if include_usage:
            said = json.dumps(usage([each.completions for each in running.each])).encode()
            yield begin + b', "choices": [], "usage": ' + said + _drafting(running) + b"}\n\n"
        yield DONE
    finally:
        await running.close()


def _drafting(running: _Running) -> bytes:
    done: list[Completion] = [one for each in running.each for one in each.completions]
    return b', "pymtp": ' + json.dumps(drafting(done)).encode()
