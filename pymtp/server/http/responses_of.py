"""What the schema says of answers, and a header of theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from pymtp.openai.requests import unknown_fields
from pymtp.server.http.error_body import ErrorBody
from pymtp.server.http.event_schema import event_stream

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FAILURES = {
    400: "The request is wrong.",
    404: "There is no such thing.",
    403: "The server takes no requests for this host.",
    408: "The body came too slowly.",
    401: "The API key is missing, or unknown.",
    413: "The body is too large.",
    429: "Too many requests wait already.",
    500: "This request failed.",
    503: "The model is being loaded, or the server is about to end, or has too much to do.",
    504: "The request took longer than it may.",
}


def failures_of(error: type[BaseModel] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """What every path may answer where it fails, with an API's error object."""
    return {status: {"model": error, "description": text} for status, text in _FAILURES.items()}


def answers_of(
    whole: type[BaseModel], event: type[BaseModel] | None = None, error: type[BaseModel] = ErrorBody
) -> dict[int | str, dict[str, Any]]:
    """As `failures_of`, and the answer. event: of the stream that may come instead."""
    found: dict[str, Any] = {"model": whole}
    if event is not None:
        found["content"] = event_stream("Where the request asks for a stream.", event, error)
    return {200: found, **failures_of(error)}


def ignored_header(url: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Names the fields of a body that nothing is known of: one may be misspelt."""
    named = [name for name in unknown_fields(url, body) if _NAME.fullmatch(name)]
    return {"x-pymtp-ignored": ", ".join(named[:16])} if named else {}
