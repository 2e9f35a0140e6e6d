"""The door of a Ray Serve application: what HTTP brings goes to a replica, and its answer back as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from fastapi import Request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymtp.ray.lead import lead_of
from pymtp.ray.reply import Reply
from pymtp.server.errors import GoneError
from pymtp.server.http import front
from pymtp.server.http.cors import let_pages_ask
from pymtp.server.http.errors import Failure, error_response
from pymtp.server.http.hosts import Hosts
from pymtp.server.http.limits import BodyLimit, Keys
from pymtp.server.http.sse import until_gone
from pymtp.server.metrics import logs
from pymtp.server.settings import ANY_HOST, Settings

_log = logging.getLogger(__name__)
METRICS = "/metrics"
METRICS_SECONDS = 5.0  # that a replica has to tell its metrics: Prometheus waits for 10
_SENT_ON = ("type", "asgi", "http_version", "method", "scheme", "path", "query_string", "headers", "client", "server")
_GONE = (RayError, RayServeException, asyncio.CancelledError)  # what a replica's code hears of others, and of its end
LOST = Failure(503, "the replica that was to answer is gone", "server_error", "replica_lost", retry_after=1)
FAILED = Failure(500, "the replica failed: the log says why", "server_error", "internal_error")
LATE = Failure(503, "a replica did not tell its metrics in time", "server_error", "unavailable", retry_after=5)
FULL = Failure(429, "too many requests wait for a replica", "rate_limit_error", "queue_full", retry_after=1)


class Front:
    """A deployment without a model, any number of it. It asks for keys, bounds bodies, and finds the replica."""

    def __init__(self, replicas: DeploymentHandle[Any], settings: Settings) -> None:
        logs.configure(settings.log_format, settings.log_level)
        self._replicas, self._settings = replicas, settings

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """For Ray: what answers."""
        return around(Forward(self._replicas), self._settings)


def around(forward: ASGIApp, settings: Settings) -> ASGIApp:
    """What a request has to pass before a replica sees it, as in pymtp/server/app.py."""
    app = Starlette()  # for its lifespan
    app.router.default = BodyLimit(forward, settings.max_body_bytes)
    if settings.api_keys:
        app.add_middleware(Keys, keys=settings.api_keys)
    let_pages_ask(app, settings)
    if ANY_HOST not in settings.allowed_hosts:
        app.add_middleware(Hosts, names=(settings.host, *settings.allowed_hosts))
    app.add_middleware(front.Front)
    app.add_middleware(Proxied)
    return app


class Proxied:
    """What Ray Serve's proxies bring, as `pymtp serve` has it. Paths begin at the application's route prefix. The proxy
    gives requests an id, and names it in answers itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if prefix := scope.get("root_path"):
            scope = {**scope, "root_path": "", "path": scope["path"].removeprefix(prefix) or "/"}
        is_named = "x-request-id" in Headers(scope=scope)

        async def send_once(message: Message) -> None:
            if message["type"] == "http.response.start" and is_named:
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        await self._app(scope, receive, send_once)


class Forward:
    """Asks the replica that is best for a request. One that is lost on the way fails its own requests only."""

    def __init__(self, replicas: DeploymentHandle[Any]) -> None:
        self._replicas = replicas
        self._answer = replicas.options(stream=True, method_name="answer")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == METRICS and scope["method"] == "GET":
            await (await self._metrics(scope))(scope, receive, send)
            return
        body = (await receive())["body"] if scope["method"] in ("POST", "PUT", "PATCH") else b""
        with suppress(GoneError):
            await until_gone(receive, self._forward(scope, body, Reply(scope, send)))

    async def _forward(self, scope: Scope, body: bytes, reply: Reply) -> None:
        lead = lead_of(scope["method"], scope["path"], body)
        answer: Any = self._answer.remote(_sent_on(scope), body, lead=lead)
        try:
            async for messages in answer:
                for message in messages:
                    await reply.send(message)
        except BackPressureError:
            await reply.fail(FULL)
        except (RayError, RayServeException) as error:
            # its code has failed, and it lives
            if isinstance(error, RayTaskError) and not isinstance(error.cause, _GONE):
                _log.error("a replica failed at %s %s", scope["method"], scope["path"], exc_info=error)
                await reply.fail(FAILED)
            else:
                await reply.fail(LOST)
        finally:
            answer.cancel()  # nothing where it has ended

    async def _metrics(self, scope: Scope) -> Response:
        """Those of all replicas that are there."""
        asked = self._replicas.broadcast("metrics")
        try:
            told = await asked.results_async(timeout_s=METRICS_SECONDS, return_exceptions=True)
        except TimeoutError:
            return error_response(Request(scope), LATE)
        registry = CollectorRegistry()
        registry.register(_Told(merged(each for each in told if not isinstance(each, BaseException))))
        encode, content_type = choose_encoder(Headers(scope=scope).get("accept", ""))
        return Response(encode(registry), media_type=content_type)


def merged(told: Iterable[list[Metric]]) -> list[Metric]:
    """The metrics of several replicas: each once, with the samples of all."""
    found: dict[str, Metric] = {}
    for metric in (metric for metrics in told for metric in metrics):
        if metric.name in found:
            found[metric.name].samples += metric.samples
        else:
            found[metric.name] = metric
    return list(found.values())


class _Told(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _sent_on(scope: Scope) -> dict[str, Any]:
    """What a replica is told of a request. Its log has the request's id by a header."""
    found = {name: scope[name] for name in _SENT_ON if name in scope}
    named = (b"x-request-id", scope["state"]["request_id"].encode())
    found["headers"] = [*(each for each in scope["headers"] if each[0] != named[0]), named]
    return found
