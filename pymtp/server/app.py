"""The FastAPI application: its routes and its middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from threading import Lock

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from pymtp.async_llm import AsyncLLM
from pymtp.llm import LLM
from pymtp.server import info, pages, tokenize
from pymtp.server.http import errors
from pymtp.server.http.access import AllowedHostsMiddleware, ApiKeyMiddleware, add_cors, add_security_schemes
from pymtp.server.http.decompression import DecompressionMiddleware
from pymtp.server.http.ignored_log import IgnoredLogMiddleware
from pymtp.server.http.left_out import LeftOutMiddleware
from pymtp.server.http.middleware import (
    BodyLimitMiddleware,
    ConnectionLimitMiddleware,
    RequestIdMiddleware,
    ShutdownMiddleware,
)
from pymtp.server.http.paths import PathSpellingMiddleware
from pymtp.server.llama import router as llama
from pymtp.server.messages import routes as messages
from pymtp.server.metrics import registry
from pymtp.server.metrics.registry import Metrics
from pymtp.server.metrics.request_log import RequestLogMiddleware
from pymtp.server.ollama import router as ollama
from pymtp.server.ollama.json_type import JsonTypeMiddleware
from pymtp.server.openai import routes as openai
from pymtp.server.responses import routes as responses
from pymtp.server.responses.store import ResponseStore
from pymtp.server.service import Service
from pymtp.server.settings import ANY_HOST, ServerSettings

# The routers of the APIs of a model
ROUTERS = tuple(module.router for module in (openai, messages, responses, llama, ollama, tokenize, info, registry))


def create_app(
    settings: ServerSettings, load: Callable[[], LLM], on_loaded: Callable[[Exception | None], object] = lambda _: None
) -> FastAPI:
    """Create the application, which answers requests once `load` has returned on another thread.

    The shutdown of the application closes the LLM.

    load: loads the LLM.
    on_loaded: called with None once requests are answered, or with the exception that `load` raised.
    """
    app = base_app(settings, _lifespan(settings, load, on_loaded))
    app.state.responses = ResponseStore()
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(LeftOutMiddleware)  # within the next one, which logs what the header names
    app.add_middleware(IgnoredLogMiddleware)
    add_limits(app, settings)
    return app


def base_app(settings: ServerSettings, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """Create an application with a state, error handlers and pages, to which routes and `add_limits` are to be added.

    lifespan: the context of the application's life.
    """
    app = FastAPI(
        title="pymtp",
        version=version("pymtp"),
        lifespan=lifespan,
        openapi_url=None,  # FastAPI would make the schema on the event loop
        docs_url=None,  # FastAPI's documentation pages would load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # many clients do not repeat a POST request after a redirection
    )
    app.state.settings = settings
    app.state.service = None
    app.state.metrics = Metrics()
    app.state.ending = False  # True from the signal to shut down: new requests are refused
    app.state.refuse = lambda: None  # called once when the server shuts down
    app.state.abort = None  # called after the grace, to abort the requests that still run; a front leaves it to workers
    errors.install_error_handlers(app)
    making = Lock()

    def schema(request: Request) -> JSONResponse:
        """Return the schema. The first call takes a second, so it must not run on the event loop."""
        with making:
            return JSONResponse(app.openapi())

    app.add_route("/openapi.json", schema, include_in_schema=False)
    if settings.page:
        app.include_router(pages.router)
    return app


def add_limits(app: FastAPI, settings: ServerSettings) -> None:
    """Add the middleware, after all routes: limits, access, the request log."""
    # Starlette passes a request to the middleware in reverse order: the one that is added last gets it first.
    app.add_middleware(DecompressionMiddleware, max_bytes=settings.max_body_bytes)
    app.add_middleware(BodyLimitMiddleware, max_bytes=settings.max_body_bytes, budget_bytes=settings.max_bodies_bytes)
    if settings.api_keys:
        app.add_middleware(ApiKeyMiddleware, keys=settings.api_keys)
        add_security_schemes(app)
    app.add_middleware(ShutdownMiddleware)
    add_cors(app, settings)
    if ANY_HOST not in settings.allowed_hosts:
        app.add_middleware(AllowedHostsMiddleware, names=(*settings.hosts, *settings.allowed_hosts))
    app.add_middleware(ConnectionLimitMiddleware)
    app.add_middleware(RequestLogMiddleware, count=app.state.metrics.count_http, prompts=settings.log_prompts)
    app.add_middleware(RequestIdMiddleware)
    app.add_middleware(JsonTypeMiddleware)
    app.add_middleware(PathSpellingMiddleware, routes_of=app)


def _lifespan(
    settings: ServerSettings, load: Callable[[], LLM], on_loaded: Callable[[Exception | None], object]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    async def start(app: FastAPI) -> None:
        try:
            llm = await asyncio.to_thread(load)
        except Exception as error:
            on_loaded(error)
            return
        app.state.service = Service(AsyncLLM(llm), settings, app.state.metrics)
        app.state.abort = llm.cancel
        on_loaded(None)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(start(app))
        yield
        await loading  # the thread that loads the model cannot be cancelled
        if (service := app.state.service) is not None:
            await service.llm.close()
            await asyncio.to_thread(service.llm.llm.close)

    return lifespan
