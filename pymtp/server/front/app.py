"""The application of a front: the routes of a server of one model, each of which passes requests on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from pymtp.server import info
from pymtp.server.app import ROUTERS, add_limits, base_app
from pymtp.server.front import routes
from pymtp.server.front.metrics import PoolMetrics
from pymtp.server.front.pool import ModelPool
from pymtp.server.front.proxy import ModelProxy
from pymtp.server.llama import predict
from pymtp.server.ollama import models as ollama
from pymtp.server.settings import ServerSettings


def create_front_app(
    settings: ServerSettings,
    pool: ModelPool[Any],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """Create the application of a front.

    lifespan: a context manager of the application's life, as for FastAPI.
    """
    app = base_app(settings, lifespan or _no_lifespan)
    app.state.service = pool
    app.state.refuse = pool.end
    app.state.metrics.registry.register(PoolMetrics(pool))
    app.include_router(routes.router)
    app.include_router(predict.router)  # here, because its instances may be for several models
    app.add_api_route("/version", info.version, tags=["server"])
    app.add_api_route("/api/version", ollama.version, tags=["Ollama"])
    passed = [route for router in ROUTERS for route in _flat_routes(router)]
    app.router.routes += [
        Route(each.path, ModelProxy(pool, each.path), methods=list(each.methods or ())) for each in passed
    ]

    @cache
    def schema() -> dict[str, Any]:
        """Return the schema of all paths: those that are passed on have the schema of the workers."""
        documents = FastAPI(title=app.title, version=app.version)
        for router in (*ROUTERS, routes.router):  # the later ones replace paths of the earlier ones
            documents.include_router(router)
        return documents.openapi()

    app.openapi = schema  # type: ignore[method-assign]
    add_limits(app, settings)
    return app


def _flat_routes(router: APIRouter) -> Iterator[APIRoute]:
    """Yield the routes of a router and of the routers in it, which newer versions of FastAPI keep apart."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif isinstance(inner := getattr(route, "original_router", None), APIRouter):
            yield from _flat_routes(inner)


@asynccontextmanager
async def _no_lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
