"""/v1/responses, as OpenAI's clients speak it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import Response as Answer

from pymtp.openai.requests import CHAT, read_ask
from pymtp.openai.responses import drafting
from pymtp.server.dependencies import CurrentService
from pymtp.server.errors import UnknownResponseError
from pymtp.server.finish import ended
from pymtp.server.http.ascii_json import AsciiJson, Echoing
from pymtp.server.http.errors import failure
from pymtp.server.http.event_schema import event_stream
from pymtp.server.http.named_events import named_events
from pymtp.server.http.responses_of import failures_of
from pymtp.server.http.sse import DONE, EventStream, while_there
from pymtp.server.responses.read import allowed_tools, chat_body, read_input
from pymtp.server.responses.resource import Deleted, Response
from pymtp.server.responses.store import ResponseStore, Stored
from pymtp.server.responses.types import ResponseRequest
from pymtp.server.responses.write import ResponseWriter
from pymtp.server.service import Answering, Service, Update

RESPONSES = "/v1/responses"
router = APIRouter(tags=["OpenAI"])
_ABOUT = "Events of OpenAI's API: response.created, … response.completed, and at the end `data: [DONE]`."
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": Response,
        "content": event_stream(_ABOUT),
        "links": {
            name: {"operationId": name, "parameters": {"response_id": "$response.body#/id"}}
            for name in ("stored_response", "delete_response")
        },
    },
    **failures_of(),
}


def _store(request: Request) -> ResponseStore:
    store = request.app.state.responses
    assert isinstance(store, ResponseStore)
    return store


Store = Annotated[ResponseStore, Depends(_store)]


class _Job:
    """A request for one response."""

    def __init__(self, service: Service, store: ResponseStore, body: ResponseRequest) -> None:
        self._service, self._store = service, store
        self._body = body.model_dump(exclude_unset=True, by_alias=True)
        self._messages = [*_before(self._body, store), *read_input(self._body["input"])]
        ask = read_ask(CHAT, chat_body(self._body, self._messages), service.sampling)
        allowed = allowed_tools(self._body)
        self.ask = ask if allowed is None else replace(ask, tools=[tool for tool in ask.tools if tool.name in allowed])
        self._writer = ResponseWriter(self._body, ask.params, service.settings.replica)

    async def whole(self) -> Echoing:
        """The answer."""
        async with self._service.answer(self.ask) as answering:
            async for update in answering:
                self._writer.go_on(update.events)
        response: Echoing = self._end(answering, update)[-1]["response"]
        return response

    async def events(self, answering: Answering, stack: AsyncExitStack) -> AsyncIterator[bytes]:
        """The answer as a stream. stack: what is left with it."""
        async with stack:
            yield named_events(self._writer.begin())
            async for update in answering:
                if events := self._writer.go_on(update.events):
                    yield named_events(events)
            yield named_events(self._end(answering, update)) + DONE

    def failed(self, error: Exception) -> bytes:
        """The end of a stream that failed."""
        return named_events(self._writer.fail(failure(error))) + DONE

    def _end(self, answering: Answering, last: Update) -> list[dict[str, Any]]:
        assert last.finish_reason is not None
        done, model = answering.completions[0], self._service.llm.llm.model
        how = ended(self.ask, done, last.finish_reason, model)
        events = self._writer.end(how, {"pymtp": drafting([done])})
        response = events[-1]["response"]
        if response["store"]:
            self._store.put(Stored(response, [*self._messages, *self._writer.turns()]))
        return events


def _before(body: Mapping[str, Any], store: ResponseStore) -> Sequence[Mapping[str, Any]]:
    name = body.get("previous_response_id")
    if name is None:
        return ()
    if (stored := store.get(name)) is None:
        raise UnknownResponseError(f"previous_response_id: {name!r:.80} is not stored, or no longer")
    return stored.messages


@router.post(RESPONSES, response_model=None, responses=_ANSWERS)
async def responses(request: Request, body: ResponseRequest, service: CurrentService, store: Store) -> Answer:
    """The model's answer, as OpenAI's newer clients ask for it."""
    service.check_model(body.model)
    job = _Job(service, store, body)
    if not job.ask.stream:
        return AsciiJson(await while_there(request, job.whole()))
    stack = AsyncExitStack()
    answering = await stack.enter_async_context(service.answer(job.ask))
    return EventStream(job.events(answering, stack), job.failed)


@router.post(f"{RESPONSES}/compact", include_in_schema=False)
async def compact() -> None:
    """No such thing: without this path it would be the name of a response, which cannot be posted to."""
    raise HTTPException(404)


@router.get(
    f"{RESPONSES}/{{response_id}}",
    operation_id="stored_response",
    responses={200: {"model": Response}, **failures_of()},
)
async def stored_response(response_id: str, store: Store) -> AsciiJson:
    """A response that was stored, while it is."""
    if (stored := store.get(response_id)) is None:
        raise _gone(response_id)
    return AsciiJson(stored.response)


@router.delete(f"{RESPONSES}/{{response_id}}", operation_id="delete_response", responses=failures_of())
async def delete_response(response_id: str, store: Store) -> Deleted:
    """Forgets a response. Those that went on with it stay."""
    if not store.remove(response_id):
        raise _gone(response_id)
    return Deleted(id=response_id)


def _gone(response_id: str) -> HTTPException:
    return HTTPException(404, f"there is no response {response_id!r:.80}, or no longer")
