"""The route of /predict, in which Vertex AI (Google Cloud) passes requests to a server in a container."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field
from starlette.types import Message
from typing_extensions import TypedDict

from pymtp.openai.request_body import CHAT, TEXT
from pymtp.server.http.errors import ErrorInfo, error_body, error_info
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.response_schema import error_responses, ignored_header, unknown_names
from pymtp.server.http.sse import run_until_disconnect
from pymtp.server.metrics.logs import log
from pymtp.server.openai.types import FailFastList, JsonObject, RequestModel
from pymtp.validation import shown

router = APIRouter(tags=["llama.cpp"])
FORMAT = "@requestFormat"
# the path of each format: as llama-server names them, and as the path itself
PATHS = {
    "chatCompletions": CHAT,
    "completions": TEXT,
    "embeddings": "/v1/embeddings",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "completion": "/completion",
    "rerank": "/rerank",
}
PATHS |= {path: path for path in PATHS.values()}
_OWN_HEADERS = (b"content-length", b"content-encoding", b"transfer-encoding")


class PredictRequest(RequestModel):
    """Bodies of requests of other paths, each with its format."""

    instances: Annotated[FailFastList[JsonObject], Field(max_length=128)] = Field(
        description=f'Each has "{FORMAT}", such as "chatCompletions", beside the fields of that request.'
    )


class Predictions(TypedDict):
    """The answers of the requests in their order, or their errors."""

    predictions: list[dict[str, Any]]


@router.post("/predict", response_model=None, responses={200: {"model": Predictions}, **error_responses()})
async def predict(request: Request, body: PredictRequest) -> Response:
    """Answer several requests at once. A request that fails has its error in place of its answer."""

    async def answers() -> list[Any]:
        return await asyncio.gather(*(_answer(request, dict(instance)) for instance in body.instances))

    predictions = await run_until_disconnect(request.receive, answers())
    return AsciiJSONResponse(Predictions(predictions=predictions), headers=ignored_header(unknown_names(body)))


async def _answer(request: Request, instance: dict[str, Any]) -> Any:
    """Return the answer of the application to an instance: a parsed JSON object."""
    name = instance.pop(FORMAT, None)
    path = PATHS.get(name) if isinstance(name, str) else None
    if path is None:
        message = f"{FORMAT}={shown(name)} must be one of {', '.join(PATHS)}"
        return error_body("", ErrorInfo(400, message, code="invalid_value", param=FORMAT))
    if instance.get("stream"):
        return error_body("", ErrorInfo(400, "stream: /predict has no streams", code="invalid_value", param="stream"))
    sent, body = False, json.dumps(instance).encode()

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.Future()  # the outer request notices a client that leaves
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    parts: list[bytes] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    try:
        await request.app(_scope(request, path, len(body)), receive, send)
        return json.loads(b"".join(parts))
    except Exception as error:  # the application raises unknown errors again
        log.exception("an instance of /predict failed")
        return error_body(path, error_info(error))


def _scope(request: Request, path: str, n_bytes: int) -> dict[str, Any]:
    """Return the ASGI scope of a POST request to a path, with the headers of the outer request."""
    kept = {name: request.scope[name] for name in ("type", "asgi", "http_version", "scheme", "client", "server")}
    headers = [(name, value) for name, value in request.scope["headers"] if name.lower() not in _OWN_HEADERS]
    headers.append((b"content-length", str(n_bytes).encode()))
    own = {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    return {**kept, **own, "headers": headers, "state": {}}
