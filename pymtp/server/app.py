"""The application: all paths, and what stands around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from pymtp.async_llm import AsyncLLM
from pymtp.llm import LLM
from pymtp.server import health, pages, tokenize, totals
from pymtp.server.http import errors
from pymtp.server.http.cors import let_pages_ask
from pymtp.server.http.front import Front
from pymtp.server.http.hosts import Hosts
from pymtp.server.http.limits import BodyLimit, Crowd, Keys, guard_schema
from pymtp.server.messages import routes as messages
from pymtp.server.metrics import registry
from pymtp.server.metrics.registry import Metrics
from pymtp.server.metrics.request_log import RequestLog
from pymtp.server.openai import chat_completions, completions, model_list
from pymtp.server.responses import routes as responses
from pymtp.server.responses.store import ResponseStore
from pymtp.server.service import Service
from pymtp.server.settings import ANY_HOST, Settings


def create_app(
    settings: Settings, load: Callable[[], LLM], on_loaded: Callable[[Exception | None], object] = lambda _: None
) -> FastAPI:
    """The application. Its server listens at once, and answers once `load` has returned, on another thread.

    on_loaded: called once requests are answered, or with what `load` raised. The LLM is closed with the app.
    """
    app = FastAPI(
        title="pymtp",
        version=version("pymtp"),
        lifespan=_lifespan(settings, load, on_loaded),
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a path with a slash too many is unknown: clients make no POST of a redirection
    )
    app.state.settings = settings
    app.state.service = None
    app.state.responses = ResponseStore()
    app.state.metrics = Metrics()
    app.state.ending = False  # set when no new requests are to be taken
    errors.install(app)
    for part in (
        chat_completions,
        completions,
        messages,
        responses,
        model_list,
        tokenize,
        health,
        totals,
        registry,
    ):
        app.include_router(part.router)
    if settings.page:
        app.include_router(pages.router)
    # the last one added is the first to see a request
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    if settings.api_keys:
        app.add_middleware(Keys, keys=settings.api_keys)
        guard_schema(app)
    let_pages_ask(app, settings)
    if ANY_HOST not in settings.allowed_hosts:
        app.add_middleware(Hosts, names=(settings.host, *settings.allowed_hosts))
    app.add_middleware(Crowd)
    app.add_middleware(RequestLog, count=app.state.metrics.count_http, prompts=settings.log_prompts)
    app.add_middleware(Front)
    return app


def _lifespan(
    settings: Settings, load: Callable[[], LLM], on_loaded: Callable[[Exception | None], object]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    async def begin(app: FastAPI) -> None:
        try:
            llm = await asyncio.to_thread(load)
        except Exception as error:
            on_loaded(error)
            return
        app.state.service = Service(AsyncLLM(llm), settings, app.state.metrics)
        on_loaded(None)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(begin(app))
        yield
        await loading  # a thread cannot be called back
        if (service := app.state.service) is not None:
            await service.llm.close()
            await asyncio.to_thread(service.llm.llm.close)

    return lifespan
