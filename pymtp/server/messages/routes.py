"""The routes of /v1/messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pymtp.server.dependencies import ServiceDep
from pymtp.server.event_response import respond
from pymtp.server.http.errors import MessageErrorBody
from pymtp.server.http.response_schema import error_responses, event_stream_schema, ignored_header, unknown_names
from pymtp.server.http.sse import encode_events
from pymtp.server.messages.read import read_message_request
from pymtp.server.messages.tools import skipped_tools
from pymtp.server.messages.types import (
    AnthropicMessage,
    CountTokensRequest,
    CountTokensResponse,
    MessageRequest,
)
from pymtp.server.messages.write import PING, MessageWriter
from pymtp.server.token_count import count_prompt_tokens

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
    generate_request = read_message_request(fields, service.sampling)
    display = (fields.get("thinking") or {}).get("display")
    model = body.model or service.model_name
    writer = MessageWriter(model, request.state.request_id, shows_thinking=display != "omitted")
    keepalive, ignored = encode_events([PING]), _ignored(fields, body)
    return await respond(request, service, generate_request, writer, keepalive=keepalive, headers=ignored)


@router.post(f"{MESSAGES}/count_tokens", responses=error_responses(MessageErrorBody))
async def count_tokens(
    request: Request, body: CountTokensRequest, service: ServiceDep, response: Response
) -> CountTokensResponse:
    """Return the number of prompt tokens that a chat has."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    generate_request = read_message_request(fields)
    response.headers.update(_ignored(fields, body))
    return {"input_tokens": await count_prompt_tokens(request.receive, service, generate_request)}


def _ignored(fields: Mapping[str, Any], body: CountTokensRequest) -> dict[str, str]:
    return ignored_header([*(tool.label for tool in skipped_tools(fields)), *unknown_names(body)])
