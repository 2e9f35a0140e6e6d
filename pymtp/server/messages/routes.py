"""/v1/messages, as Anthropic's clients speak it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pymtp.chat.prompt import ChatPrompt
from pymtp.openai.generate_request import Ask, prepared
from pymtp.openai.requests import CHAT, read_ask
from pymtp.openai.responses import drafting
from pymtp.server.dependencies import CurrentService
from pymtp.server.finish import Ended, ended
from pymtp.server.http.ascii_json import AsciiJson
from pymtp.server.http.errors import error_body, failure
from pymtp.server.http.event_schema import event_stream
from pymtp.server.http.named_events import named_events
from pymtp.server.http.responses_of import failures_of
from pymtp.server.http.sse import EventStream, while_there
from pymtp.server.messages.read import chat_body
from pymtp.server.messages.types import AnswerMessage, Count, CountRequest, MessageErrorBody, MessageRequest
from pymtp.server.messages.write import PING, MessageWriter
from pymtp.server.service import Answering, Service, Update

MESSAGES = "/v1/messages"
router = APIRouter(tags=["Anthropic"])
_ABOUT = "Events of Anthropic's API: message_start, content_block_start, content_block_delta, … message_stop."
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": AnswerMessage,
        "content": event_stream(_ABOUT, done=False),
    },
    **failures_of(MessageErrorBody),
}


@router.post(MESSAGES, response_model=None, responses=_ANSWERS)
async def messages(request: Request, body: MessageRequest, service: CurrentService) -> Response:
    """The assistant's next turn, as Anthropic's clients ask for it."""
    service.check_model(body.model)
    asked = body.model_dump(exclude_unset=True, by_alias=True)
    ask = read_ask(CHAT, chat_body(asked), service.sampling)
    display = (asked.get("thinking") or {}).get("display")
    writer = MessageWriter(body.model, shows_thinking=display != "omitted")
    if not ask.stream:
        return AsciiJson(await while_there(request, _whole(service, ask, writer)))
    stack = AsyncExitStack()
    answering = await stack.enter_async_context(service.answer(ask))
    events = _events(service, ask, answering, stack, writer)
    return EventStream(events, _failed(request), waiting=named_events([PING]))


@router.post(f"{MESSAGES}/count_tokens", responses=failures_of(MessageErrorBody))
async def count_tokens(body: CountRequest, service: CurrentService) -> Count:
    """How many tokens the prompt of these messages has."""
    service.check_model(body.model)
    ask = read_ask(CHAT, chat_body(body.model_dump(exclude_unset=True, by_alias=True)))
    ask = service.within_budget(ask)
    prompt = (await service.prepare(lambda: prepared(service.llm.llm, ask))).prompt
    assert isinstance(prompt, ChatPrompt)
    return Count(input_tokens=len(prompt.tokens))


async def _whole(service: Service, ask: Ask, writer: MessageWriter) -> dict[str, Any]:
    async with service.answer(ask) as answering:
        async for update in answering:
            writer.go_on(update.events)
    return writer.whole(_ended(service, ask, answering, update, writer)) | _drafting(answering)


async def _events(
    service: Service, ask: Ask, answering: Answering, stack: AsyncExitStack, writer: MessageWriter
) -> AsyncIterator[bytes]:
    async with stack:
        yield named_events(writer.begin(answering.prompt_tokens))
        async for update in answering:
            if events := writer.go_on(update.events):
                yield named_events(events)
        yield named_events(writer.end(_ended(service, ask, answering, update, writer), _drafting(answering)))


def _ended(service: Service, ask: Ask, answering: Answering, last: Update, writer: MessageWriter) -> Ended:
    assert last.finish_reason is not None
    return ended(ask, answering.completions[0], last.finish_reason, service.llm.llm.model)


def _drafting(answering: Answering) -> dict[str, Any]:
    return {"pymtp": drafting(answering.completions)}


def _failed(request: Request) -> Any:
    def event(error: Exception) -> bytes:
        return named_events([error_body(MESSAGES, failure(error), request.state.request_id)])

    return event
