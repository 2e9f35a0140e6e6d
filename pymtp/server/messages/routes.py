"""The routes of /v1/messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pymtp.chat.prompt import ChatPrompt
from pymtp.openai.generate_request import GenerateRequest, prepare_request
from pymtp.openai.request_body import CHAT, read_generate_request
from pymtp.openai.response_body import draft_stats
from pymtp.server.dependencies import ServiceDep
from pymtp.server.finish import FinishInfo, finish_info
from pymtp.server.http.errors import error_body, error_info
from pymtp.server.http.event_schema import event_stream_schema
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.response_schema import error_responses
from pymtp.server.http.sse import EventStream, run_with_cancellation
from pymtp.server.http.sse_encoding import encode_events
from pymtp.server.messages.read import to_chat_body
from pymtp.server.messages.types import (
    AnthropicMessage,
    CountTokensRequest,
    CountTokensResponse,
    MessageErrorBody,
    MessageRequest,
)
from pymtp.server.messages.write import PING, MessageWriter
from pymtp.server.service import Delta, RunningRequest, Service

MESSAGES = "/v1/messages"
router = APIRouter(tags=["Anthropic"])
_EVENTS_DESCRIPTION = (
    "Events of Anthropic's API: message_start, content_block_start, content_block_delta, … message_stop."
)
_RESPONSES_SCHEMA: dict[int | str, dict[str, Any]] = {
    200: {
        "model": AnthropicMessage,
        "content": event_stream_schema(_EVENTS_DESCRIPTION, done=False),
    },
    **error_responses(MessageErrorBody),
}


@router.post(MESSAGES, response_model=None, responses=_RESPONSES_SCHEMA)
async def messages(request: Request, body: MessageRequest, service: ServiceDep) -> Response:
    """Generate the assistant's next message of a chat."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    generate_request = read_generate_request(CHAT, to_chat_body(fields), service.sampling)
    display = (fields.get("thinking") or {}).get("display")
    writer = MessageWriter(body.model, shows_thinking=display != "omitted")
    if not generate_request.stream:
        return AsciiJSONResponse(
            await run_with_cancellation(request, _whole_message(service, generate_request, writer))
        )
    stack = AsyncExitStack()
    running = await stack.enter_async_context(service.run_request(generate_request))
    events = _events(service, generate_request, running, stack, writer)
    return EventStream(events, _encode_error(request), keepalive=encode_events([PING]))


@router.post(f"{MESSAGES}/count_tokens", responses=error_responses(MessageErrorBody))
async def count_tokens(body: CountTokensRequest, service: ServiceDep) -> CountTokensResponse:
    """Return the number of prompt tokens that a chat has."""
    service.check_model(body.model)
    generate_request = read_generate_request(CHAT, to_chat_body(body.model_dump(exclude_unset=True, by_alias=True)))
    generate_request = service.apply_thinking_budget(generate_request)
    prompt = (await service.prepare(lambda: prepare_request(service.llm.llm, generate_request))).prompt
    assert isinstance(prompt, ChatPrompt)
    return CountTokensResponse(input_tokens=len(prompt.tokens))


async def _whole_message(service: Service, generate_request: GenerateRequest, writer: MessageWriter) -> dict[str, Any]:
    async with service.run_request(generate_request) as running:
        async for delta in running:
            writer.push(delta.events)
    return writer.message(_finish_info(service, generate_request, running, delta)) | _draft_stats(running)


async def _events(
    service: Service,
    generate_request: GenerateRequest,
    running: RunningRequest,
    stack: AsyncExitStack,
    writer: MessageWriter,
) -> AsyncIterator[bytes]:
    async with stack:
        yield encode_events(writer.begin(running.prompt_tokens))
        async for delta in running:
            if events := writer.push(delta.events):
                yield encode_events(events)
        yield encode_events(writer.end(_finish_info(service, generate_request, running, delta), _draft_stats(running)))


def _finish_info(
    service: Service, generate_request: GenerateRequest, running: RunningRequest, last: Delta
) -> FinishInfo:
    assert last.finish_reason is not None
    return finish_info(generate_request, running.completions[0], last.finish_reason, service.llm.llm.model)


def _draft_stats(running: RunningRequest) -> dict[str, Any]:
    return {"pymtp": draft_stats(running.completions)}


def _encode_error(request: Request) -> Any:
    def event(error: Exception) -> bytes:
        return encode_events([error_body(MESSAGES, error_info(error), request.state.request_id)])

    return event
