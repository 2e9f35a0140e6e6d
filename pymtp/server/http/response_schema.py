"""The responses of routes in the OpenAPI schema, and the response header that names ignored request fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter

from pymtp.openai.request_body import UNMENTIONED_FIELDS, unknown_fields
from pymtp.server.http.errors import ErrorBody

_PRINTED_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ERROR_DESCRIPTIONS = {
    400: "The request is invalid.",
    404: "The model, the response or the path does not exist.",
    403: "The Host header names a host that is not allowed.",
    408: "The body came too slowly.",
    401: "The API key is missing or unknown.",
    413: "The body is too large.",
    415: "The body has a Content-Encoding that is not supported.",
    429: "The queue is full.",
    500: "The request failed.",
    501: "The options of the server switch this endpoint off.",
    503: "The model is being loaded, the server is shutting down, or it is overloaded.",
    504: "The request timed out.",
}


def error_responses(error: type[Any] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route for the OpenAPI schema. error: the model of the error object."""
    # Only the first response names the model, and the others refer to it: FastAPI builds a validator for each name, and
    # those of all routes took a tenth of the time to import the server.
    reference = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error.__name__}"}}}
    first, *_ = _ERROR_DESCRIPTIONS
    return {
        status: {"description": text} | ({"model": error} if status == first else {"content": reference})
        for status, text in _ERROR_DESCRIPTIONS.items()
    }


def endpoint_responses(
    body: type[Any], event: type[Any] | None = None, error: type[Any] = ErrorBody
) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route for the OpenAPI schema.

    body: the model of the response's body.
    event: the model of the events, if the route can stream; None if it cannot.
    error: the model of the error object.
    """
    success: dict[str, Any] = {"model": body}
    if event is not None:
        success["content"] = event_stream_schema("Returned if the request has stream: true.", event, error)
    return {200: success, **error_responses(error)}


def ignored_fields_header(url: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Return the response header that names the unknown fields of a request's body, which may be misspelt."""
    return ignored_header(unknown_fields(url, body))


def unknown_names(body: BaseModel) -> list[str]:
    """Return the names of the fields of a request's body that its model does not have, except those that are null."""
    extra = body.model_extra or {}
    return sorted(name for name, value in extra.items() if value is not None and name not in UNMENTIONED_FIELDS)


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """Return the response header that names fields of a request's body that change nothing."""
    printed = [name for name in names if _PRINTED_NAME.fullmatch(name)]
    return {"x-pymtp-ignored": ", ".join(printed[:16])} if printed else {}


def event_stream_schema(description: str, *models: type[Any], done: bool = True) -> dict[str, Any]:
    """Return the `content` entry of a response that is an event stream, for the OpenAPI schema.

    description: the description of the events.
    models: the data of each event are the JSON of one of these models; without models, they may be any JSON object.
    done: whether the stream ends with the data `[DONE]`.
    """
    schemas = [_inlined(TypeAdapter(model).json_schema(mode="serialization")) for model in models] or [
        {"type": "object"}
    ]
    data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": schemas} if len(schemas) > 1 else schemas[0],
    }
    event = {
        "type": "object",
        "description": description,
        "properties": {
            "event": {"type": "string"},
            "data": {"anyOf": [data, {"const": "[DONE]"}]} if done else data,
        },
        "required": ["data"],
    }
    return {"text/event-stream": {"schema": event}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace each reference by the schema that it refers to, because contentSchema allows no references."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            name = value.get("$ref", "").rpartition("/")[2]
            return resolve(definitions[name]) if name else {key: resolve(item) for key, item in value.items()}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = resolve(schema)
    return inlined
