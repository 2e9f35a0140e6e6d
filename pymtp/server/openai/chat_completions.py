"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pymtp.openai.generate_request import Ask
from pymtp.openai.requests import CHAT, read_ask
from pymtp.openai.responses import answer
from pymtp.server.dependencies import CurrentService
from pymtp.server.http.ascii_json import AsciiJson
from pymtp.server.http.errors import stream_failure
from pymtp.server.http.responses_of import answers_of, ignored_header
from pymtp.server.http.sse import DONE, EventStream, while_there
from pymtp.server.openai.chat_chunks import ChatChunks
from pymtp.server.openai.chat_types import ChatChunk, ChatCompletion, ChatRequest
from pymtp.server.service import Answering, Service

router = APIRouter(tags=["OpenAI"])


@router.post(CHAT, response_model=None, responses=answers_of(ChatCompletion, ChatChunk))
async def chat_completions(request: Request, body: ChatRequest, service: CurrentService) -> Response:
    """The assistant's next turn, as OpenAI's clients ask for it."""
    service.check_model(body.model)
    asked = body.model_dump(exclude_unset=True, by_alias=True)
    ignored = ignored_header(CHAT, asked)
    ask = read_ask(CHAT, asked, service.sampling)
    if not ask.stream:
        return AsciiJson(await while_there(request, _whole(service, ask, asked)), headers=ignored)
    stack = AsyncExitStack()
    answering = await stack.enter_async_context(service.answer(ask))
    return EventStream(_events(service, answering, stack, asked), stream_failure(CHAT), ignored)


async def _whole(service: Service, ask: Ask, asked: dict[str, Any]) -> dict[str, Any]:
    async with service.answer(ask) as answering:
        texts = await answering.whole()
    return answer(CHAT, asked, [texts], service.llm.llm.model, service.model_name)


async def _events(
    service: Service, answering: Answering, stack: AsyncExitStack, asked: dict[str, Any]
) -> AsyncIterator[bytes]:
    options = asked.get("stream_options") or {}
    n = asked.get("n") or 1
    chunks = ChatChunks(
        service.llm.llm.model,
        asked.get("model") or service.model_name,
        n,
        include_usage=bool(options.get("include_usage")),
        origins=bool((asked.get("pymtp") or {}).get("origins")),
    )
    left = n
    async with stack:
        async for update in answering:
            chunk = chunks.chunk(update)
            if update.finish_reason is not None:
                left -= 1
                chunk += chunks.end(update, None if left else answering.completions)
            if chunk:
                yield chunk
        yield chunks.usage(answering.completions) + DONE
