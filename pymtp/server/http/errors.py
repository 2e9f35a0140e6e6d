"""Failures as HTTP answers: a status, and the error object of the API that was asked by."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from pymtp.errors import ClosedError, ContextFullError, InvalidRequestError, PymtpError
from pymtp.server.errors import (
    GoneError,
    OverdueError,
    QueueFullError,
    UnavailableError,
    UnknownModelError,
    UnknownResponseError,
)
from pymtp.server.http.ascii_json import AsciiJson
from pymtp.server.http.wrong_fields import wrong_field

ANTHROPIC = "/v1/messages"  # all paths that begin so
# a page of another site may send other types without asking the browser first
_JSON = re.compile(r"\s*application/([^;]+\+)?json\s*(;|$)", re.IGNORECASE)
NO_JSON = "the body must be JSON, and come with Content-Type: application/json"
SHOWN = 400  # characters of what a client sent, in a message


class Failure(NamedTuple):
    """Why there is no answer. param: the field of the request. retry_after: seconds."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What clients go by."""
        if self.retry_after is not None:
            return {"Retry-After": str(self.retry_after)}
        # clients repeat whatever has a status from 500 by themselves: this would take as long again
        return {"x-should-retry": "false"} if self.code == "timeout" else {}


def failure(error: Exception) -> Failure:
    """What a client is told of an error."""
    said = str(error)
    match error:
        case ContextFullError():
            return Failure(400, said, code="context_length_exceeded")
        case InvalidRequestError():
            return Failure(400, said, code="invalid_value", param=error.param)
        case UnknownModelError():
            return Failure(404, said, code="model_not_found", param="model")
        case UnknownResponseError():
            return Failure(400, said, code="previous_response_not_found", param="previous_response_id")
        case QueueFullError():
            return Failure(429, said, "rate_limit_error", "queue_full", retry_after=error.retry_after)
        case UnavailableError():
            return Failure(503, said, "overloaded_error", "unavailable", retry_after=error.retry_after)
        case ClosedError():
            return Failure(503, "the server is about to end", "overloaded_error", "unavailable", retry_after=5)
        case OverdueError():
            return Failure(504, said, "timeout_error", "timeout")
        case PymtpError():
            return Failure(500, said, "server_error", "native_failure")
    return Failure(500, "the server failed: its log says why", "server_error", "internal_error")


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(path: str, found: Failure, request_id: str | None = None) -> dict[str, Any]:
    """The error object of the API that a path belongs to."""
    if path.startswith(ANTHROPIC):
        kind = _ANTHROPIC_TYPES.get(found.status, "api_error")
        # by these words agents see that they have to shorten the chat
        said = f"prompt is too long: {found.message}" if found.code == "context_length_exceeded" else found.message
        return {"type": "error", "error": {"type": kind, "message": said}, "request_id": request_id}
    return {"error": {"message": found.message, "type": found.type, "param": found.param, "code": found.code}}


def error_response(request: Request, found: Failure, headers: Mapping[str, str] | None = None) -> AsciiJson:
    """The answer that says so."""
    request_id = getattr(request.state, "request_id", None)
    named = {} if request_id is None else {"x-request-id": request_id}  # also where this stands around all else
    body = error_body(request.url.path, found, request_id)
    return AsciiJson(body, found.status, {**named, **found.headers, **(headers or {})})


def stream_failure(path: str) -> Callable[[Exception], bytes]:
    """Writes the event that tells of an error in the middle of a stream."""
    return lambda error: b"data: " + json.dumps(error_body(path, failure(error))).encode() + b"\n\n"


def install(app: FastAPI) -> None:
    """Every failure of the app is answered with an error object."""

    async def known(request: Request, error: Exception) -> AsciiJson:
        return error_response(request, failure(error))

    async def invalid(request: Request, error: Exception) -> AsciiJson:
        assert isinstance(error, RequestValidationError)
        if request.method == "POST" and not _JSON.match(request.headers.get("content-type", "")):
            return error_response(request, Failure(400, NO_JSON, code="invalid_content_type"))
        return error_response(request, _invalid(error))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code != 405:
            return error_response(request, _http(request, error), error.headers)
        allow = {"Allow": ", ".join(_allowed(request))}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=allow)
        return error_response(request, _http(request, error), allow)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # as nginx logs it: nobody reads it

    app.add_exception_handler(PymtpError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(GoneError, gone)
    app.add_exception_handler(Exception, known)


def _allowed(request: Request) -> list[str]:
    """The methods of a path."""
    routes = request.app.router.routes
    found = [
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if any(route.matches({**request.scope, "method": method})[0] == Match.FULL for route in routes)
    ]
    return [*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"]


def _http(request: Request, error: HTTPException) -> Failure:
    if error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase:
        return Failure(404, f"there is no {request.method} {request.url.path:.{SHOWN}}", code="unknown_url")
    if error.status_code == 405:
        return Failure(405, f"{request.method} is not allowed here", code="method_not_allowed")
    if error.status_code == 400:
        return Failure(400, _unreadable(error.__cause__), code="invalid_json")
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return Failure(error.status_code, str(error.detail), kind)


def _unreadable(cause: BaseException | None) -> str:
    """Why a body cannot be read, though it may be JSON."""
    match cause:
        case RecursionError():
            return "the body cannot be read: its lists and objects are nested too deep"
        case UnicodeDecodeError():
            return f"the body cannot be read: it is not UTF-8, by its byte {cause.start}"
        case ValueError():
            return f"the body cannot be read: a number in it has more than {sys.get_int_max_str_digits()} digits"
    return "the body cannot be read as JSON"


def _invalid(error: RequestValidationError) -> Failure:
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        why, at = first["ctx"]["error"], first["loc"][1]
        return Failure(400, f"the body is not JSON: {why}, at character {at}", code="invalid_json")
    field, message = wrong_field(errors, error.body)
    return Failure(400, message, code="invalid_type", param=field)
