"""The front of a Ray Serve application: it forwards each HTTP request to a replica, and streams the answer back.

A replica is a process with a model, see replica.py.
"""

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

from pymtp.ray.reply import Reply
from pymtp.ray.routing import routing_hint
from pymtp.server.errors import ClientDisconnectedError
from pymtp.server.http.access import AllowedHostsMiddleware, ApiKeyMiddleware, add_cors
from pymtp.server.http.errors import ErrorInfo, error_response
from pymtp.server.http.middleware import BodyLimitMiddleware, RequestIdMiddleware
from pymtp.server.http.sse import run_until_disconnect
from pymtp.server.metrics import logs
from pymtp.server.settings import ANY_HOST, ServerSettings

_log = logging.getLogger(__name__)
METRICS = "/metrics"
METRICS_SECONDS = 5.0  # timeout for the metrics of replicas; below the 10 seconds that Prometheus waits
# the fields of a request's ASGI scope that are sent to a replica
_SCOPE = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "query_string",
    "headers",
    "client",
    "server",
)
# If a RayTaskError has one of these causes, the replica was lost; otherwise the code in the replica failed.
_LOST_CAUSES = (RayError, RayServeException, asyncio.CancelledError)
REPLICA_LOST = ErrorInfo(
    503, "the replica that was answering this request was lost", "server_error", "replica_lost", retry_after=1
)
REPLICA_FAILED = ErrorInfo(500, "the replica failed: the server's log has the reason", "server_error", "internal_error")
LATE_METRICS = ErrorInfo(
    503, "a replica did not send its metrics in time", "server_error", "unavailable", retry_after=5
)
QUEUE_FULL = ErrorInfo(429, "too many requests wait for a replica", "rate_limit_error", "queue_full", retry_after=1)


class FrontDeployment:
    """A deployment without a model. It checks API keys and the size of bodies, and forwards requests to replicas."""

    def __init__(self, replicas: DeploymentHandle[Any], settings: ServerSettings) -> None:
        logs.configure(settings.log_format, settings.log_level)
        self._replicas, self._settings = replicas, settings

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Build the ASGI application that Ray serves."""
        return with_middleware(ReplicaForwarder(self._replicas), self._settings)


def with_middleware(forward: ASGIApp, settings: ServerSettings) -> ASGIApp:
    """Wrap `forward` in the checks of API keys, bodies, origins and hosts that `pymtp serve` has too."""
    app = Starlette()  # for the lifespan messages of ASGI, which `forward` does not handle
    app.router.default = BodyLimitMiddleware(forward, settings.max_body_bytes, budget_bytes=settings.max_bodies_bytes)
    if settings.api_keys:
        app.add_middleware(ApiKeyMiddleware, keys=settings.api_keys)
    add_cors(app, settings)
    if ANY_HOST not in settings.allowed_hosts:
        app.add_middleware(AllowedHostsMiddleware, names=(*settings.hosts, *settings.allowed_hosts))
    app.add_middleware(RequestIdMiddleware)
    app.add_middleware(ProxyAdapter)
    return app


class ProxyAdapter:
    """Middleware that adapts the requests of Ray Serve's proxy, so that they look like those of `pymtp serve`.

    The adapter removes the application's route prefix from paths. The proxy gives each request an id, and adds that id
    to the answer itself; so that the answer does not have two such headers, the adapter removes that of the front.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if prefix := scope.get("root_path"):
            scope = {**scope, "root_path": "", "path": scope["path"].removeprefix(prefix) or "/"}
        has_id = "x-request-id" in Headers(scope=scope)

        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start" and has_id:
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        await self._app(scope, receive, send_without_id)


class ReplicaForwarder:
    """The ASGI application that forwards each request to a replica.

    If a replica is lost, only the requests that it was answering fail.
    """

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
        with suppress(ClientDisconnectedError):
            await run_until_disconnect(receive, self._forward(scope, body, Reply(scope, send)))

    async def _forward(self, scope: Scope, body: bytes, reply: Reply) -> None:
        hint = routing_hint(scope["method"], scope["path"], body)
        answer: Any = self._answer.remote(_forwarded_scope(scope), body, hint=hint)
        try:
            async for messages in answer:
                for message in messages:
                    await reply.send(message)
        except BackPressureError:
            await reply.fail(QUEUE_FULL)
        except (RayError, RayServeException) as error:
            # if the code in the replica raised an error, the replica is still alive
            if isinstance(error, RayTaskError) and not isinstance(error.cause, _LOST_CAUSES):
                _log.error("a replica failed at %s %s", scope["method"], scope["path"], exc_info=error)
                await reply.fail(REPLICA_FAILED)
            else:
                await reply.fail(REPLICA_LOST)
        finally:
            answer.cancel()  # has no effect on a finished answer

    async def _metrics(self, scope: Scope) -> Response:
        """Return a response with the metrics of all replicas that are alive."""
        broadcast = self._replicas.broadcast("metrics")
        try:
            results = await broadcast.results_async(timeout_s=METRICS_SECONDS, return_exceptions=True)
        except TimeoutError:
            return error_response(Request(scope), LATE_METRICS)
        registry = CollectorRegistry()
        registry.register(_FixedMetrics(merge_metrics(r for r in results if not isinstance(r, BaseException))))
        encode, content_type = choose_encoder(Headers(scope=scope).get("accept", ""))
        return Response(encode(registry), media_type=content_type)


def merge_metrics(replicas: Iterable[list[Metric]]) -> list[Metric]:
    """Merge the metrics of several replicas: return each metric once, with the samples of all replicas."""
    by_name: dict[str, Metric] = {}
    for metric in (metric for metrics in replicas for metric in metrics):
        if metric.name in by_name:
            by_name[metric.name].samples += metric.samples
        else:
            by_name[metric.name] = metric
    return list(by_name.values())


class _FixedMetrics(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _forwarded_scope(scope: Scope) -> dict[str, Any]:
    """Return the part of a request's scope that is sent to a replica.

    The request's id is added as a header, so that the replica's log can show it.
    """
    forwarded = {name: scope[name] for name in _SCOPE if name in scope}
    id_header = (b"x-request-id", scope["state"]["request_id"].encode())
    forwarded["headers"] = [*(header for header in scope["headers"] if header[0] != id_header[0]), id_header]
    return forwarded
