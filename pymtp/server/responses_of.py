"""What the schema says of answers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pymtp.server.openai_types import ErrorBody

_FAILURES = {
    400: "The request is wrong.",
    401: "The API key is missing, or unknown.",
    413: "The body is too large.",
    429: "Too many requests wait already.",
    500: "This request failed.",
    503: "The model is being loaded, or the server is about to end.",
    504: "The request took longer than it may.",
}


def failures_of(error: type[BaseModel] = ErrorBody, *more: int) -> dict[int | str, dict[str, Any]]:
    """What every path may answer where it fails, with an API's error object. more: further statuses."""
    each = {**_FAILURES, **{status: "There is no such thing." for status in more}}
    return {status: {"model": error, "description": text} for status, text in each.items()}


def answers_of(
    whole: type[BaseModel], event: type[BaseModel] | None = None, error: type[BaseModel] = ErrorBody, *more: int
) -> dict[int | str, dict[str, Any]]:
    """As `failures_of`, and the answer. event: of the stream that may come instead."""
    found: dict[str, Any] = {"model": whole}
    if event is not None:
        about = f"Lines `data: {event.__name__}`, and at the end `data: [DONE]`."
        found["content"] = {"text/event-stream": {"schema": {"type": "string", "description": about}}}
    return {200: found, **failures_of(error, *more)}
