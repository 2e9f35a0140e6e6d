"""The routes of /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import Response as HttpResponse

from pymtp.server.dependencies import ServiceDep
from pymtp.server.errors import UnknownResponseError
from pymtp.server.event_response import respond
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.middleware import KEY_DIGEST
from pymtp.server.http.response_schema import error_responses, event_stream_schema, ignored_header, unknown_names
from pymtp.server.http.sse import DONE
from pymtp.server.responses.read import ignored_names, input_messages, read_response_request
from pymtp.server.responses.store import ResponseStore, StoredResponse
from pymtp.server.responses.types import DeletedResponse, Response, ResponseRequest
from pymtp.server.responses.write import ResponseWriter
from pymtp.server.token_count import InputTokens, count_prompt_tokens

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


def _get_owner(request: Request) -> str:
    return str(request.scope["state"].get(KEY_DIGEST, ""))


StoreDep = Annotated[ResponseStore, Depends(_get_store)]
OwnerDep = Annotated[str, Depends(_get_owner)]


@router.post(RESPONSES, response_model=None, responses=_RESPONSES_SCHEMA)
async def responses(
    request: Request, body: ResponseRequest, service: ServiceDep, store: StoreDep, owner: OwnerDep
) -> HttpResponse:
    """Generate a response to an input."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    fields["model"] = body.model or service.model_name
    messages = _messages(fields, store, owner)
    generate_request = read_response_request(fields, messages, service.sampling)
    writer = ResponseWriter(fields, generate_request.params, service.settings.replica)

    def keep() -> None:
        if writer.response["store"]:
            store.put(StoredResponse(writer.response, [*messages, *writer.messages()]), owner)

    return await respond(
        request,
        service,
        generate_request,
        writer,
        on_end=keep,
        last=DONE,
        headers=_ignored(fields, body),
        on_progress=writer.progress if body.return_progress else None,
        timings_per_token=bool(body.timings_per_token),
    )


@router.post(f"{RESPONSES}/input_tokens", responses=error_responses())
async def input_tokens(
    request: Request,
    body: ResponseRequest,
    service: ServiceDep,
    store: StoreDep,
    owner: OwnerDep,
    response: HttpResponse,
) -> InputTokens:
    """Return the number of prompt tokens that a response would have, without generating."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    generate_request = read_response_request(fields, _messages(fields, store, owner), service.sampling)
    n = await count_prompt_tokens(request.receive, service, generate_request)
    response.headers.update(_ignored(fields, body))
    return InputTokens(object="response.input_tokens", input_tokens=n)


def _ignored(fields: Mapping[str, Any], body: ResponseRequest) -> dict[str, str]:
    return ignored_header([*ignored_names(fields), *unknown_names(body)])


def _messages(fields: Mapping[str, Any], store: ResponseStore, owner: str) -> list[Mapping[str, Any]]:
    """Return the messages of the previous response, then those of the input."""
    return [
        *_previous_messages(fields, store, owner),
        *input_messages(_with_stored_items(fields["input"], store, owner)),
    ]


def _with_stored_items(given: str | Sequence[Mapping[str, Any]], store: ResponseStore, owner: str) -> Any:
    """Return the input with the stored items in place of the references to them."""
    if isinstance(given, str):
        return given
    return [
        (store.item(str(item.get("id")), owner) or item) if item.get("type") == "item_reference" else item
        for item in given
    ]


def _previous_messages(body: Mapping[str, Any], store: ResponseStore, owner: str) -> Sequence[Mapping[str, Any]]:
    name = body.get("previous_response_id")
    if name is None:
        return ()
    if (stored := store.get(name, owner)) is None:
        raise UnknownResponseError(
            f"previous_response_id: there is no stored response {name!r:.80}; it may have been removed"
        )
    return stored.messages


@router.post(f"{RESPONSES}/compact", include_in_schema=False)
async def compact() -> None:
    """Return status 404. Without this route, "compact" would be read as a response id, and the status would be 405."""
    raise HTTPException(404)


@router.get(
    f"{RESPONSES}/{{response_id}}",
    operation_id="stored_response",
    responses={200: {"model": Response}, **error_responses()},
)
async def stored_response(response_id: str, store: StoreDep, owner: OwnerDep) -> AsciiJSONResponse:
    """Return a stored response."""
    if (stored := store.get(response_id, owner)) is None:
        raise _not_found(response_id)
    return AsciiJSONResponse(stored.response)


@router.delete(f"{RESPONSES}/{{response_id}}", operation_id="delete_response", responses=error_responses())
async def delete_response(response_id: str, store: StoreDep, owner: OwnerDep) -> DeletedResponse:
    """Delete a stored response. Responses that continued the deleted response are kept."""
    if not store.remove(response_id, owner):
        raise _not_found(response_id)
    return DeletedResponse(id=response_id)


def _not_found(response_id: str) -> HTTPException:
    return HTTPException(404, f"there is no stored response {response_id!r:.80}; it may have been removed")
