"""The routes of /v1/responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import Response as HttpResponse

from pymtp.openai.request_body import CHAT, read_generate_request
from pymtp.openai.response_body import draft_stats
from pymtp.server.dependencies import ServiceDep
from pymtp.server.errors import UnknownResponseError
from pymtp.server.finish import finish_info
from pymtp.server.http.errors import error_info
from pymtp.server.http.event_schema import event_stream_schema
from pymtp.server.http.json_response import AsciiJSONResponse, PreencodedObject
from pymtp.server.http.response_schema import error_responses
from pymtp.server.http.sse import DONE, EventStream, run_with_cancellation
from pymtp.server.http.sse_encoding import encode_events
from pymtp.server.responses.read import allowed_tools, input_messages, to_chat_body
from pymtp.server.responses.resource import DeletedResponse, Response
from pymtp.server.responses.store import ResponseStore, StoredResponse
from pymtp.server.responses.types import ResponseRequest
from pymtp.server.responses.write import ResponseWriter
from pymtp.server.service import Delta, RunningRequest, Service

RESPONSES = "/v1/responses"
router = APIRouter(tags=["OpenAI"])
_EVENTS_DESCRIPTION = "Events of OpenAI's API: response.created, … response.completed, and at the end `data: [DONE]`."
_RESPONSES_SCHEMA: dict[int | str, dict[str, Any]] = {
    200: {
        "model": Response,
        "content": event_stream_schema(_EVENTS_DESCRIPTION),
        "links": {
            name: {"operationId": name, "parameters": {"response_id": "$response.body#/id"}}
            for name in ("stored_response", "delete_response")
        },
    },
    **error_responses(),
}


def _get_store(request: Request) -> ResponseStore:
    store = request.app.state.responses
    assert isinstance(store, ResponseStore)
    return store


StoreDep = Annotated[ResponseStore, Depends(_get_store)]


class _ResponseJob:
    """The creation of one response, which is stored at the end if the request wants that."""

    def __init__(self, service: Service, store: ResponseStore, body: ResponseRequest) -> None:
        self._service, self._store = service, store
        self._body = body.model_dump(exclude_unset=True, by_alias=True)
        self._messages = [*_previous_messages(self._body, store), *input_messages(self._body["input"])]
        generate_request = read_generate_request(CHAT, to_chat_body(self._body, self._messages), service.sampling)
        allowed = allowed_tools(self._body)
        self.generate_request = (
            generate_request
            if allowed is None
            else replace(generate_request, tools=[tool for tool in generate_request.tools if tool.name in allowed])
        )
        self._writer = ResponseWriter(self._body, generate_request.params, service.settings.replica)

    async def response(self) -> PreencodedObject:
        """Run the request, and return the whole response. Also stores it."""
        async with self._service.run_request(self.generate_request) as running:
            async for delta in running:
                self._writer.push(delta.events)
        response: PreencodedObject = self._end(running, delta)[-1]["response"]
        return response

    async def events(self, running: RunningRequest, stack: AsyncExitStack) -> AsyncIterator[bytes]:
        """Yield the encoded events of the stream. Also stores the response.

        running: the running request.
        stack: the contexts to leave when the stream ends.
        """
        async with stack:
            yield encode_events(self._writer.begin())
            async for delta in running:
                if events := self._writer.push(delta.events):
                    yield encode_events(events)
            yield encode_events(self._end(running, delta)) + DONE

    def encode_error(self, error: Exception) -> bytes:
        """Return the last encoded events of a stream that fails with `error`."""
        return encode_events(self._writer.fail(error_info(error))) + DONE

    def _end(self, running: RunningRequest, last: Delta) -> list[dict[str, Any]]:
        assert last.finish_reason is not None
        done, model = running.completions[0], self._service.llm.llm.model
        finish = finish_info(self.generate_request, done, last.finish_reason, model)
        events = self._writer.end(finish, {"pymtp": draft_stats([done])})
        response = events[-1]["response"]
        if response["store"]:
            self._store.put(StoredResponse(response, [*self._messages, *self._writer.messages()]))
        return events


def _previous_messages(body: Mapping[str, Any], store: ResponseStore) -> Sequence[Mapping[str, Any]]:
    name = body.get("previous_response_id")
    if name is None:
        return ()
    if (stored := store.get(name)) is None:
        raise UnknownResponseError(
            f"previous_response_id: there is no stored response {name!r:.80}; it may have been removed"
        )
    return stored.messages


@router.post(RESPONSES, response_model=None, responses=_RESPONSES_SCHEMA)
async def responses(request: Request, body: ResponseRequest, service: ServiceDep, store: StoreDep) -> HttpResponse:
    """Generate a response to an input."""
    service.check_model(body.model)
    job = _ResponseJob(service, store, body)
    if not job.generate_request.stream:
        return AsciiJSONResponse(await run_with_cancellation(request, job.response()))
    stack = AsyncExitStack()
    running = await stack.enter_async_context(service.run_request(job.generate_request))
    return EventStream(job.events(running, stack), job.encode_error)


@router.post(f"{RESPONSES}/compact", include_in_schema=False)
async def compact() -> None:
    """Return status 404. Without this route, "compact" would be read as a response id, and the status would be 405."""
    raise HTTPException(404)


@router.get(
    f"{RESPONSES}/{{response_id}}",
    operation_id="stored_response",
    responses={200: {"model": Response}, **error_responses()},
)
async def stored_response(response_id: str, store: StoreDep) -> AsciiJSONResponse:
    """Return a stored response."""
    if (stored := store.get(response_id)) is None:
        raise _not_found(response_id)
    return AsciiJSONResponse(stored.response)


@router.delete(f"{RESPONSES}/{{response_id}}", operation_id="delete_response", responses=error_responses())
async def delete_response(response_id: str, store: StoreDep) -> DeletedResponse:
    """Delete a stored response. Responses that continued the deleted response are kept."""
    if not store.remove(response_id):
        raise _not_found(response_id)
    return DeletedResponse(id=response_id)


def _not_found(response_id: str) -> HTTPException:
    return HTTPException(404, f"there is no stored response {response_id!r:.80}; it may have been removed")
