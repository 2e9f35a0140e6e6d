"""Conversion of exceptions to HTTP responses: a status, and an error object in the form of the requested API."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.routing import Match

from pymtp.errors import ClosedError, ContextFullError, InvalidRequestError, PymtpError
from pymtp.server.errors import (
    ClientDisconnectedError,
    NotEnabledError,
    QueueFullError,
    RequestTimeoutError,
    UnavailableError,
    UnknownModelError,
    UnknownResponseError,
)
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.validation_errors import first_field_error

ANTHROPIC_PREFIX = "/v1/messages"  # the prefix of the paths of Anthropic's API
OLLAMA_PREFIX = "/api/"  # the prefix of the paths of Ollama's API
# POST requests must have a JSON content type. Web pages of other sites can send other content types without a preflight
# request, so that CORS would not stop them.
JSON_TYPE = re.compile(r"\s*application/([^;]+\+)?json\s*(;|$)", re.IGNORECASE)
NOT_JSON = "the body must be JSON, with the header Content-Type: application/json"
MAX_SHOWN = 400  # the most characters of a path in an error message


class ErrorInfo(NamedTuple):
    """An error as clients see it.

    status: the HTTP status.
    message: the message for the user.
    type: the type of the error in OpenAI's API.
    code: the code of the error in OpenAI's API.
    param: the wrong field of the request; None if the error does not concern a field.
    retry_after: the number of seconds after which the client should retry; None for no hint.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that tell clients whether and when to retry."""
        if self.retry_after is not None:
            return {"Retry-After": str(self.retry_after)}
        # OpenAI's clients retry after every status from 500. After a timeout, the retry would probably time out too.
        return {"x-should-retry": "false"} if self.code == "timeout" else {}


class _ErrorModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(_ErrorModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(_ErrorModel):
    error: Error


class MessageError(_ErrorModel):
    type: str
    message: str


class MessageErrorBody(_ErrorModel):
    type: Literal["error"]
    error: MessageError
    request_id: str | None


def error_info(error: Exception) -> ErrorInfo:
    """Convert an exception to the error that the client sees."""
    message = str(error)
    match error:
        case ContextFullError():
            return ErrorInfo(400, message, code="context_length_exceeded")
        case InvalidRequestError():
            return ErrorInfo(400, message, code="invalid_value", param=error.param)
        case UnknownModelError():
            return ErrorInfo(404, message, code="model_not_found", param="model")
        case UnknownResponseError():
            return ErrorInfo(400, message, code="previous_response_not_found", param="previous_response_id")
        case QueueFullError():
            return ErrorInfo(429, message, "rate_limit_error", "queue_full", retry_after=error.retry_after)
        case UnavailableError():
            return ErrorInfo(503, message, "overloaded_error", "unavailable", retry_after=error.retry_after)
        case ClosedError():
            return ErrorInfo(503, "the server is shutting down", "overloaded_error", "unavailable", retry_after=5)
        case NotEnabledError():
            return ErrorInfo(501, message, "not_supported_error", "not_enabled")
        case RequestTimeoutError():
            return ErrorInfo(504, message, "timeout_error", "timeout")
        case PymtpError():
            return ErrorInfo(500, message, "server_error", "native_failure")
    return ErrorInfo(
        500,
        "the server failed with an internal error; the cause is in the log of the server",
        "server_error",
        "internal_error",
    )


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(info: ErrorInfo, request_id: str | None) -> dict[str, Any]:
    """Return the error object for an error, in the form of Anthropic's API."""
    # Agents recognize a full context by these words, and then shorten the chat.
    message = f"prompt is too long: {info.message}" if info.code == "context_length_exceeded" else info.message
    # model_construct: a message may repeat lone surrogates of the request, which pydantic would refuse
    error = MessageError.model_construct(type=_ANTHROPIC_TYPES.get(info.status, "api_error"), message=message)
    return MessageErrorBody.model_construct(type="error", error=error, request_id=request_id).model_dump()


def error_body(path: str, info: ErrorInfo, request_id: str | None = None) -> dict[str, Any]:
    """Return the error object for an error, in the form of the API to which the path belongs."""
    if path.startswith(ANTHROPIC_PREFIX):
        return anthropic_error(info, request_id)
    if path.startswith(OLLAMA_PREFIX):
        return {"error": info.message}
    error = Error.model_construct(message=info.message, type=info.type, param=info.param, code=info.code)
    return ErrorBody.model_construct(error=error).model_dump()


def error_response(request: Request, info: ErrorInfo, headers: Mapping[str, str] | None = None) -> AsciiJSONResponse:
    """Return the HTTP response for an error. headers: further headers of the response."""
    request_id = getattr(request.state, "request_id", None)
    # RequestIdMiddleware does not see the response to an unhandled exception, so the header is set here.
    id_header = {} if request_id is None else {"x-request-id": request_id}
    body = error_body(request.url.path, info, request_id)
    return AsciiJSONResponse(body, info.status, {**id_header, **info.headers, **(headers or {})})


def stream_error_encoder(path: str) -> Callable[[Exception], bytes]:
    """Return a function that encodes an error that occurs during a stream as an event."""
    return lambda error: b"data: " + json.dumps(error_body(path, error_info(error))).encode() + b"\n\n"


def install_error_handlers(app: FastAPI) -> None:
    """Install exception handlers that answer every exception with an error object."""

    async def handle_error(request: Request, error: Exception) -> AsciiJSONResponse:
        return error_response(request, error_info(error))

    async def handle_unknown_error(request: Request, error: Exception) -> AsciiJSONResponse:
        # Starlette raises the error again, and uvicorn then closes the connection
        return error_response(request, error_info(error), {"Connection": "close"})

    async def handle_validation_error(request: Request, error: Exception) -> AsciiJSONResponse:
        assert isinstance(error, RequestValidationError)
        if request.method == "POST" and not JSON_TYPE.match(request.headers.get("content-type", "")):
            return error_response(request, ErrorInfo(400, NOT_JSON, code="invalid_content_type"))
        return error_response(request, _validation_error_info(error))

    async def handle_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code != 405:
            return error_response(request, _http_error_info(request, error), error.headers)
        allow = {"Allow": ", ".join(_allowed_methods(request))}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=allow)
        return error_response(request, _http_error_info(request, error), allow)

    async def handle_disconnect(request: Request, error: Exception) -> Response:
        # Nobody reads this response. 499 is nginx's status for a disconnected client, and appears in the log.
        return Response(status_code=499)

    app.add_exception_handler(PymtpError, handle_error)
    app.add_exception_handler(RequestValidationError, handle_validation_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.add_exception_handler(ClientDisconnectedError, handle_disconnect)
    app.add_exception_handler(Exception, handle_unknown_error)


def _allowed_methods(request: Request) -> list[str]:
    """Return the HTTP methods that the path of a request allows."""
    routes = request.app.router.routes
    methods = [
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if any(route.matches({**request.scope, "method": method})[0] == Match.FULL for route in routes)
    ]
    return [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]


def _http_error_info(request: Request, error: HTTPException) -> ErrorInfo:
    if error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase:
        return ErrorInfo(404, f"there is no {request.method} {request.url.path:.{MAX_SHOWN}}", code="unknown_url")
    if error.status_code == 405:
        return ErrorInfo(405, f"the method {request.method} is not allowed for this path", code="method_not_allowed")
    if error.status_code == 400:
        return ErrorInfo(400, _unreadable_reason(error.__cause__), code="invalid_json")
    error_type = "invalid_request_error" if error.status_code < 500 else "server_error"
    return ErrorInfo(error.status_code, str(error.detail), error_type)


def _unreadable_reason(cause: BaseException | None) -> str:
    """Explain why a body cannot be parsed. Such a body may still be valid JSON."""
    match cause:
        case RecursionError():
            return "the body cannot be read: its lists and objects are nested too deep"
        case UnicodeDecodeError():
            return f"the body cannot be read: byte {cause.start} is not valid UTF-8"
        case ValueError():
            return f"the body cannot be read: a number in it has more than {sys.get_int_max_str_digits()} digits"
    return "the body cannot be read as JSON"


def _validation_error_info(error: RequestValidationError) -> ErrorInfo:
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        reason, at = first["ctx"]["error"], first["loc"][1]
        return ErrorInfo(400, f"the body is not JSON: {reason}, at character {at}", code="invalid_json")
    field, message = first_field_error(errors, error.body)
    return ErrorInfo(400, message, code="invalid_type", param=field)
