"""The route of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.request_body import CHAT, read_generate_request
from pymtp.openai.response_body import build_response
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.errors import stream_error_encoder
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.response_schema import endpoint_responses, ignored_fields_header
from pymtp.server.http.sse import DONE, EventStream, run_with_cancellation
from pymtp.server.openai.chat_chunks import ChatChunks
from pymtp.server.openai.chat_types import ChatChunk, ChatCompletion, ChatRequest
from pymtp.server.service import RunningRequest, Service

router = APIRouter(tags=["OpenAI"])


@router.post(CHAT, response_model=None, responses=endpoint_responses(ChatCompletion, ChatChunk))
async def chat_completions(request: Request, body: ChatRequest, service: ServiceDep) -> Response:
    """Generate one or several completions of a chat."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    ignored = ignored_fields_header(CHAT, fields)
    generate_request = read_generate_request(CHAT, fields, service.sampling)
    if not generate_request.stream:
        return AsciiJSONResponse(
            await run_with_cancellation(request, _whole_completion(service, generate_request, fields)), headers=ignored
        )
    stack = AsyncExitStack()
    running = await stack.enter_async_context(service.run_request(generate_request))
    return EventStream(_events(service, running, stack, fields), stream_error_encoder(CHAT), ignored)


async def _whole_completion(
    service: Service, generate_request: GenerateRequest, fields: dict[str, Any]
) -> dict[str, Any]:
    async with service.run_request(generate_request) as running:
        texts = await running.outputs()
    return build_response(CHAT, fields, [texts], service.llm.llm.model, service.model_name)


async def _events(
    service: Service, running: RunningRequest, stack: AsyncExitStack, fields: dict[str, Any]
) -> AsyncIterator[bytes]:
    options = fields.get("stream_options") or {}
    n = fields.get("n") or 1
    chunks = ChatChunks(
        service.llm.llm.model,
        fields.get("model") or service.model_name,
        n,
        include_usage=bool(options.get("include_usage")),
        origins=bool((fields.get("pymtp") or {}).get("origins")),
    )
    n_unfinished = n
    async with stack:
        async for delta in running:
            chunk = chunks.chunk(delta)
            if delta.finish_reason is not None:
                n_unfinished -= 1
                chunk += chunks.end(delta, None if n_unfinished else running.completions)
            if chunk:
                yield chunk
        yield chunks.usage(running.completions) + DONE
