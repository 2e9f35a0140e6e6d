"""Passing a request to the worker of its model, and the answer back, piece by piece."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import quote

import httpx
from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.types import Message, Receive, Scope, Send

from pymtp.errors import InvalidRequestError, PymtpError
from pymtp.openai.request_body import CHAT, TEXT
from pymtp.server.errors import ClientDisconnectedError, UnavailableError
from pymtp.server.front.pool import ModelPool
from pymtp.server.front.pooled_model import PooledModel
from pymtp.server.http.errors import ANTHROPIC_PREFIX, JSON_TYPE, OLLAMA_PREFIX, error_body, error_info
from pymtp.server.http.sse import KEEPALIVE, KEEPALIVE_SECONDS, encode_events, run_until_disconnect
from pymtp.server.http.waited import WAITED_HEADER
from pymtp.server.metrics.request_log import LOGGED_BY_WORKER
from pymtp.server.responses.store import replica_of_response
from pymtp.validation import shown

# Headers of one connection (RFC 9110, 7.6.1), and those that the front or httpx writes itself
_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
_REQUEST_HOP = _HOP | {b"host", b"content-length", b"x-forwarded-for", b"x-request-id", WAITED_HEADER.encode()}
_RESPONSE_HOP = _HOP | {b"date", b"x-request-id", b"request-id"}
# What monitoring asks for every few seconds: it neither loads a model nor keeps it loaded
MONITORING = ("/metrics", "/figures", "/slots")
RESPONSES = "/v1/responses"
END_WAIT = 5.0  # seconds in which the end of a worker that takes no requests is noticed
# Paths whose streams are server-sent events
STREAMS = (CHAT, TEXT, ANTHROPIC_PREFIX, RESPONSES, "/completion", "/completions", "/infill")
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
_EVENTS += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
_SEPARATORS = {"text/event-stream": b"\n\n", "application/x-ndjson": b"\n"}  # what ends an event, by content type
_IN_QUERY = "%/?:@!$&'()*+,;=[]"  # characters of a query that are passed on as they are


class ProxiedWorker(Protocol):
    """A worker that answers HTTP requests. transport: sends them. headers: those of the front's own requests."""

    @property
    def transport(self) -> httpx.AsyncBaseTransport: ...

    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...

    async def ended(self) -> str: ...


class _Named(BaseModel):
    """What of a body concerns the front: its model, its time, and whether the answer is a stream.

    name: `model` of Ollama's older clients.
    """

    model: Any = None
    name: Any = None
    stream: Any = None
    previous_response_id: Any = None
    timeout: Any = None

    @property
    def wait(self) -> float:
        """Return the seconds that the request waits for its model: its timeout. The worker refuses wrong ones."""
        given = self.timeout
        return given if isinstance(given, int | float) and given > 0 else math.inf


class ModelProxy:
    """The endpoint of one path, an ASGI application: it passes requests to the model that they name.

    path: the pattern of the path, for the log and the metrics.
    """

    def __init__(self, pool: ModelPool[Any], path: str) -> None:
        self._pool, self.path = pool, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises UnknownModelError, UnavailableError, InvalidRequestError, RequestValidationError."""
        scope["route"] = self
        request = Request(scope, receive)
        if request.method == "POST" and not JSON_TYPE.match(request.headers.get("content-type", "")):
            raise RequestValidationError([])  # already here, so that pages of other sites cannot load models
        body = await request.body() if request.method in ("POST", "PUT", "PATCH") else b""
        named = read_named(body) if body else _Named()
        model = self.find_model(request, named)
        passing = _Passing(model, scope, body, send)
        wake = wakes(request, self.path, model, autoload=self._pool.autoload)
        streams = named.stream is True and self.path in STREAMS
        del request, body  # `passing` drops the body when the answer begins, which may be long before it ends

        async def work() -> None:
            waiting = asyncio.ensure_future(passing.send_keepalives()) if streams else None
            try:
                while True:
                    async with self._pool.use(model, wake=wake, wait=named.wait) as worker:
                        await _end(waiting)
                        try:
                            return await passing.forward(worker)
                        except httpx.ConnectError as error:  # it has ended, and the pool will hear of it
                            await self._wait_for_end(worker, model, error)
            except PymtpError as error:
                await _end(waiting)
                if not passing.started:
                    raise
                await passing.end(error)
            finally:
                await _end(waiting)

        try:
            await run_until_disconnect(receive, work())
        except ClientDisconnectedError:
            if not passing.started:
                raise

    async def _wait_for_end(self, worker: ProxiedWorker, model: PooledModel[Any], error: Exception) -> None:
        """Wait until a worker that takes no requests has ended. Raises UnavailableError if it has not."""
        try:
            await asyncio.wait_for(worker.ended(), END_WAIT)
        except asyncio.TimeoutError:
            raise UnavailableError(f"the worker of the model {model.name} takes no requests", retry_after=1) from error

    def find_model(self, request: Request, named: _Named) -> PooledModel[Any]:
        """Return the model that a request names in its body, its query or the id of a stored response.

        Raises UnknownModelError, InvalidRequestError.
        """
        name = named.name if named.model is None and self.path.startswith(OLLAMA_PREFIX) else named.model
        if name is None:
            name = request.query_params.get("model")
        if name is not None and not isinstance(name, str):
            raise InvalidRequestError(f"model={shown(name)} must be a string", "model")
        # a path of a stored response has its id
        stored_id = request.path_params.get("response_id")
        response_id = named.previous_response_id if stored_id is None else stored_id
        model = None if name is not None else self._model_of_response(response_id)
        model = model or self._pool.find(name)
        if stored_id is not None and model.status != "loaded":  # also, pages of other sites could load a model by GET
            raise HTTPException(
                404,
                f"there is no stored response {stored_id!r:.80}; responses are removed when their model is unloaded",
            )
        return model

    def _model_of_response(self, response_id: Any) -> PooledModel[Any] | None:
        """Return the model that has made a response; None for another id."""
        replica = replica_of_response(response_id) if isinstance(response_id, str) else None
        return next((model for i, model in enumerate(self._pool.models) if replica == f"m{i}"), None)


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


def wakes(request: Request, path: str, model: PooledModel[Any], *, autoload: bool) -> bool:
    """Return whether a request for a path loads its model, and keeps it loaded.

    autoload: whether requests load models, unless they say otherwise with ?autoload=.

    Raises InvalidRequestError if the model is not loaded, and the request may not load it.
    """
    if path in MONITORING:
        return False
    asked = request.query_params.get("autoload")
    loads = autoload if asked is None else asked not in ("false", "0")
    if not loads and model.status not in ("loading", "loaded"):
        raise InvalidRequestError(f"the model {model.name} is not loaded: load it with POST /models/load", "model")
    return True


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait({task})  # does not take a cancellation of this task for that of the other
        if not task.cancelled():
            task.result()


class _Passing:
    """One request on its way to a worker. started: whether the status of the answer has been sent."""

    def __init__(self, model: PooledModel[Any], scope: Scope, body: bytes, send: Send) -> None:
        self._model, self._scope, self._body, self._send = model, scope, body, send
        self._arrival_time = asyncio.get_running_loop().time()
        self.started = False

    async def send_keepalives(self) -> None:
        """Begin a stream, and send a keepalive now and then, while the request waits for its model."""
        while True:
            await asyncio.sleep(KEEPALIVE_SECONDS)
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
                self.started = True
            await self._send({"type": "http.response.body", "body": KEEPALIVE, "more_body": True})

    async def end(self, error: PymtpError) -> None:
        """End a stream that has begun with an error."""
        info = error_info(error)
        await self._end_with(json.dumps(error_body(self._scope["path"], info)).encode(), info.code, info.message)

    async def forward(self, worker: ProxiedWorker) -> None:
        """Send the request to a worker, and its answer to the client.

        Raises httpx.ConnectError if the worker takes no requests. If it ends meanwhile, raises UnavailableError before
        the answer has begun. A stream then ends with an error; another answer is cut off.
        """
        try:
            response = await worker.transport.handle_async_request(self._request())
        except httpx.ConnectError:
            raise
        except httpx.TransportError as error:
            raise self._lost() from error
        self._body = b""
        self._scope.setdefault("state", {})[LOGGED_BY_WORKER] = True
        try:
            if self.started and response.status_code >= 400:
                await self._pass_error(response)
                return
            if not self.started:
                headers = _without(response.headers.raw, _RESPONSE_HOP)
                start: Message = {"type": "http.response.start", "status": response.status_code, "headers": headers}
                await self._send(start)
                self.started = True
            await self._pass_body(response)
        finally:
            await response.aclose()

    def _request(self) -> httpx.Request:
        scope = self._scope
        # not the raw path, which may have any bytes
        path, query = quote(scope["path"]), quote(scope.get("query_string", b""), safe=_IN_QUERY)
        try:
            url = httpx.URL("http://worker").copy_with(raw_path=(f"{path}?{query}" if query else path).encode())
        except httpx.InvalidURL as error:
            raise InvalidRequestError("the path with its query is too long") from error
        headers = _without(scope["headers"], _REQUEST_HOP)
        headers.append((b"x-request-id", scope["state"]["request_id"].encode()))
        waited = asyncio.get_running_loop().time() - self._arrival_time
        headers.append((WAITED_HEADER.encode(), f"{waited:.6f}".encode()))
        if scope.get("client"):
            headers.append((b"x-forwarded-for", scope["client"][0].encode()))
        return httpx.Request(scope["method"], url, headers=headers, content=self._body)

    async def _pass_body(self, response: httpx.Response) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        content_type = response.headers.get("content-type", "").partition(";")[0]
        separator = _SEPARATORS.get(content_type)
        unsent = b""  # an incomplete event, so that an error never follows half an event
        try:
            async for part in response.stream:
                if separator is not None:
                    whole, end, unsent = (unsent + part).rpartition(separator)
                    part = whole + end
                if part:
                    await self._send({"type": "http.response.body", "body": part, "more_body": True})
        except httpx.TransportError as error:
            if separator is None:
                raise ConnectionResetError(str(self._lost())) from error
            await self.end(self._lost())
            return
        await self._send({"type": "http.response.body", "body": unsent, "more_body": False})

    def _lost(self) -> UnavailableError:
        return UnavailableError(
            f"the worker of the model {self._model.name} ended before the answer did; the next request starts it again"
        )

    async def _pass_error(self, response: httpx.Response) -> None:
        """End a stream that has begun with the error that a worker has answered."""
        try:
            body = await response.aread()
        except httpx.TransportError:
            await self.end(self._lost())
            return
        error = json.loads(body)["error"]
        await self._end_with(body, error.get("code"), error["message"], error.get("param"))

    async def _end_with(self, body: bytes, code: str | None, message: str, param: str | None = None) -> None:
        """End a stream with an error. body: the JSON of an answer that is not a stream."""
        path = self._scope["path"]
        if path.startswith(RESPONSES):
            event = {"type": "error", "code": code, "message": message, "param": param, "sequence_number": 0}
            encoded = encode_events([event])
        elif path.startswith(OLLAMA_PREFIX):
            encoded = body + b"\n"
        else:
            event_name = b"event: error\n" if path.startswith(ANTHROPIC_PREFIX) else b""
            encoded = event_name + b"data: " + body + b"\n\n"
        await self._send({"type": "http.response.body", "body": encoded, "more_body": False})


def _without(headers: Sequence[tuple[bytes, bytes]], names: set[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers if name.lower() not in names]


async def fetch(worker: ProxiedWorker, path: str, method: str = "GET") -> bytes:
    """Return the body of a worker's answer to a request of the front itself. Raises UnavailableError.

    method: a POST request has an empty object as its body.
    """
    try:
        response = await worker.transport.handle_async_request(
            httpx.Request(method, f"http://worker{path}", headers=worker.headers, json=None if method == "GET" else {})
        )
        try:
            body = await response.aread()
        finally:
            await response.aclose()
        if response.status_code != 200:
            raise UnavailableError(f"the worker answered {path} with status {response.status_code}")
        return body
    except httpx.TransportError as error:
        raise UnavailableError("the worker ended before the answer did") from error
