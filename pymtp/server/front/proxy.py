"""Passing a request to the worker of its model, and the answer back, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import httpx
from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.types import Message, Receive, Scope, Send

from pymtp.errors import InvalidRequestError
from pymtp.server.errors import ClientDisconnectedError, UnavailableError
from pymtp.server.front.pool import ModelPool, PooledModel
from pymtp.server.http.errors import ANTHROPIC_PREFIX, error_info, stream_error_encoder
from pymtp.server.http.sse import encode_events, run_until_disconnect
from pymtp.server.metrics.request_log import LOGGED_BY_WORKER
from pymtp.server.responses.store import replica_of_response
from pymtp.validation import shown

# Headers of one connection (RFC 9110, 7.6.1), and those that the front or httpx writes itself
_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
_REQUEST_HOP = _HOP | {b"host", b"content-length", b"x-forwarded-for", b"x-request-id"}
_RESPONSE_HOP = _HOP | {b"date", b"x-request-id", b"request-id"}
# What monitoring asks for every few seconds: it neither loads a model nor keeps it loaded
MONITORING = ("/metrics", "/figures", "/slots")
RESPONSES = "/v1/responses/"


class ProxiedWorker(Protocol):
    """A worker that answers HTTP requests. transport: sends them. headers: those of the front's own requests."""

    @property
    def transport(self) -> httpx.AsyncBaseTransport: ...

    @property
    def headers(self) -> dict[str, str]: ...


class _Named(BaseModel):
    model: Any = None
    previous_response_id: Any = None


class ModelProxy:
    """The endpoint of one path, an ASGI application: it passes requests to the model that they name.

    path: the pattern of the path, for the log and the metrics.
    """

    def __init__(self, pool: ModelPool[Any], path: str) -> None:
        self._pool, self.path = pool, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises UnknownModelError, UnavailableError, InvalidRequestError."""
        scope["route"] = self
        request = Request(scope, receive)
        body = await request.body() if request.method in ("POST", "PUT", "PATCH") else b""
        model = self.find_model(request, body)
        passing = _Passing(model, scope, body, send)
        wake = self.path not in MONITORING
        if (asked := request.query_params.get("autoload")) is not None:
            wake = asked not in ("false", "0")
        del request, body  # `passing` drops the body when the worker has it, which may be long before the answer ends

        async def work() -> None:
            async with self._pool.use(model, wake=wake) as worker:
                await passing.forward(worker)

        try:
            await run_until_disconnect(receive, work())
        except ClientDisconnectedError:
            if not passing.started:
                raise

    def find_model(self, request: Request, body: bytes) -> PooledModel[Any]:
        """Return the model that a request names in its body, its query or the id of a stored response.

        Raises UnknownModelError, InvalidRequestError; RequestValidationError for a body that is not JSON.
        """
        named = read_named(body) if body else _Named()
        name = request.query_params.get("model") if named.model is None else named.model
        if name is not None and not isinstance(name, str):
            raise InvalidRequestError(f"model={shown(name)} must be a string", "model")
        response_id = named.previous_response_id
        if self.path.startswith(RESPONSES):
            response_id = request.url.path.removeprefix(RESPONSES).partition("/")[0]
        if name is None and isinstance(response_id, str) and (replica := replica_of_response(response_id)):
            number = replica.removeprefix("m")
            if number.isdecimal() and int(number) < len(self._pool.models):
                model = self._pool.models[int(number)]
                if model.status != "loaded" and self.path.startswith(RESPONSES):
                    raise HTTPException(
                        404,
                        f"there is no stored response {response_id!r:.80}; responses are removed when their model is "
                        "unloaded",
                    )
                return model
        return self._pool.find(name)


def read_named(body: bytes) -> _Named:
    """Return what of a JSON body tells its model. Raises RequestValidationError or HTTPException as FastAPI does."""
    try:
        return _Named.model_validate_json(body)  # does not build the objects of other fields
    except ValidationError:
        pass  # pydantic refuses some JSON that Python takes, such as half an emoji
    try:
        parsed = json.loads(body)
    except json.JSONDecodeError as error:
        details = {"type": "json_invalid", "loc": ("body", error.pos), "ctx": {"error": error.msg}}
        raise RequestValidationError([{**details, "msg": "JSON decode error", "input": {}}], body=error.doc) from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "There was an error parsing the body") from error
    if not isinstance(parsed, dict):
        return _Named()
    return _Named.model_construct(**{name: parsed.get(name) for name in _Named.model_fields})


class _Passing:
    """One request on its way to a worker. started: whether the status of the answer has been sent."""

    def __init__(self, model: PooledModel[Any], scope: Scope, body: bytes, send: Send) -> None:
        self._model, self._scope, self._body, self._send = model, scope, body, send
        self.started = False

    async def forward(self, worker: ProxiedWorker) -> None:
        """Send the request to a worker, and its answer to the client.

        If the worker ends meanwhile, raises UnavailableError before the answer has begun. A stream then ends with an
        error; another answer is cut off.
        """
        try:
            response = await worker.transport.handle_async_request(self._request())
        except httpx.TransportError as error:
            raise self._lost() from error
        self._scope.setdefault("state", {})[LOGGED_BY_WORKER] = True
        try:
            headers = _without(response.headers.raw, _RESPONSE_HOP)
            start: Message = {"type": "http.response.start", "status": response.status_code, "headers": headers}
            await self._send(start)
            self.started = True
            await self._pass_body(response)
        finally:
            await response.aclose()

    def _request(self) -> httpx.Request:
        scope = self._scope
        path = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        url = httpx.URL("http://worker").copy_with(raw_path=path + (b"?" + query if query else b""))
        headers = _without(scope["headers"], _REQUEST_HOP)
        headers.append((b"x-request-id", scope["state"]["request_id"].encode()))
        if scope.get("client"):
            headers.append((b"x-forwarded-for", scope["client"][0].encode()))
        body, self._body = self._body, b""
        return httpx.Request(scope["method"], url, headers=headers, content=body)

    async def _pass_body(self, response: httpx.Response) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        unsent = b""  # an incomplete event, so that an error never follows half an event
        try:
            async for part in response.stream:
                if is_stream:
                    whole, end, unsent = (unsent + part).rpartition(b"\n\n")
                    part = whole + end
                if part:
                    await self._send({"type": "http.response.body", "body": part, "more_body": True})
        except httpx.TransportError as error:
            if not is_stream:
                raise ConnectionResetError(str(self._lost())) from error
            unsent = self._error_event()
        await self._send({"type": "http.response.body", "body": unsent, "more_body": False})

    def _lost(self) -> UnavailableError:
        return UnavailableError(
            f"the worker of the model {self._model.name} ended before the answer did; the next request starts it again"
        )

    def _error_event(self) -> bytes:
        path, info = self._scope["path"], error_info(self._lost())
        if path.startswith(RESPONSES.rstrip("/")):
            event = {"type": "error", "code": info.code, "message": info.message, "param": None, "sequence_number": 0}
            return encode_events([event])
        event_name = b"event: error\n" if path.startswith(ANTHROPIC_PREFIX) else b""
        return event_name + stream_error_encoder(path)(self._lost())


def _without(headers: Sequence[tuple[bytes, bytes]], names: set[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers if name.lower() not in names]


async def fetch(worker: ProxiedWorker, path: str) -> bytes:
    """Return the body of a worker's answer to a GET request of the front itself. Raises UnavailableError."""
    try:
        response = await worker.transport.handle_async_request(
            httpx.Request("GET", f"http://worker{path}", headers=worker.headers)
        )
        try:
            return await response.aread()
        finally:
            await response.aclose()
    except httpx.TransportError as error:
        raise UnavailableError("the worker ended before the answer did") from error
