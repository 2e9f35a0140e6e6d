"""The routes that a front answers itself: the list of models, their loading and unloading, health, and metrics."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from pymtp.errors import PymtpError
from pymtp.openai.response_body import fingerprint
from pymtp.server.errors import UnavailableError
from pymtp.server.front.metrics import worker_families
from pymtp.server.front.pool import ModelPool
from pymtp.server.front.pooled_model import PooledModel
from pymtp.server.front.proxy import ModelProxy, fetch
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.response_schema import error_responses
from pymtp.server.http.sse import run_until_disconnect
from pymtp.server.info import Health
from pymtp.server.metrics.registry import START_TIME, metrics_response
from pymtp.server.ollama.types import OllamaShowRequest

router = APIRouter()


class ModelStatus(BaseModel):
    """The state of a model, in the form of llama-server's router.

    value: "unloading" is told as "unloaded". failed: whether the last load failed. error: why.
    """

    value: Literal["unloaded", "loading", "loaded"]
    failed: bool | None = None
    error: str | None = None


class RoutedModel(BaseModel):
    """A model of a front. Further fields are those of its worker's card, once it has been loaded."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pymtp"
    status: ModelStatus
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None


class RoutedModels(BaseModel):
    object: Literal["list"] = "list"
    data: list[RoutedModel]


class ModelRequest(BaseModel):
    model: str


class Success(BaseModel):
    success: Literal[True] = True


def _pool(request: Request) -> ModelPool[Any]:
    pool = request.app.state.service
    assert isinstance(pool, ModelPool)
    return pool


@router.get("/v1/health", tags=["server"], response_model=Health, responses={503: {"model": Health}})
@router.get("/health", tags=["server"], response_model=Health, responses={503: {"model": Health}})
async def front_health(request: Request) -> JSONResponse:
    """Return status 200 if the server answers requests, and 503 during startup and shutdown. Needs no API key.

    A single model is loaded at startup; several ones are loaded when they are asked for.
    """
    models = _pool(request).models
    if request.app.state.ending or (len(models) == 1 and not models[0].loads):
        status = "ending" if request.app.state.ending else "loading"
        return JSONResponse({"status": status}, 503, {"Retry-After": "1"})
    return JSONResponse({"status": "ok"})


@router.get("/v1/models", tags=["OpenAI"], response_model_exclude_none=True, responses=error_responses())
@router.get("/models", include_in_schema=False, response_model_exclude_none=True)
async def routed_models(request: Request) -> RoutedModels:
    """List the models, with what is known of them, and whether they are loaded."""
    return RoutedModels(data=[_card(model, name) for model in _pool(request).models for name in model.names])


@router.get("/v1/models/{name:path}", tags=["OpenAI"], response_model_exclude_none=True, responses=error_responses())
async def routed_model(
    request: Request, name: Annotated[str, Path(description="One of the names that /v1/models lists.")]
) -> RoutedModel:
    """Return the card of a model, without loading it."""
    pool = _pool(request)
    model = pool.find(name)
    with suppress(UnavailableError):  # its state can be told
        await run_until_disconnect(request.receive, pool.describe(model))
    return _card(model, name)


@router.post("/models/load", tags=["llama.cpp"], responses=error_responses())
async def load_model(request: Request, body: ModelRequest) -> Success:
    """Begin to load a model. Another one is unloaded if there is no room for both."""
    pool = _pool(request)
    pool.load(pool.find(body.model))
    return Success()


@router.post("/models/unload", tags=["llama.cpp"], responses=error_responses())
async def unload_model(request: Request, body: ModelRequest) -> Success:
    """Begin to unload a model, after its running requests. A later request for it loads it again."""
    pool = _pool(request)
    pool.unload(pool.find(body.model))
    return Success()


@router.get("/props", tags=["OpenAI", "llama.cpp"], responses=error_responses(), response_model=None)
async def router_props(request: Request, model: str | None = None) -> Any:
    """Return the properties of a model; without ?model=, those of the server of several models.

    A model that is not loaded stays so: `is_sleeping` is true.
    """
    pool = _pool(request)
    if model is None and len(pool.models) > 1:
        return {
            "role": "router",
            "max_instances": pool.models_max,
            "models_autoload": pool.autoload,
            "model_alias": "pymtp",
            "model_path": "none",
            "default_generation_settings": {"params": None, "n_ctx": 0},
            "build_info": fingerprint(),
        }
    asked = pool.find(model)
    description = await run_until_disconnect(request.receive, pool.describe(asked))
    return AsciiJSONResponse(json.loads(description.answers["/props"]) | {"is_sleeping": asked.status != "loaded"})


@router.get("/metrics", include_in_schema=False, response_model=None)
async def all_metrics(request: Request, model: str | None = None) -> Any:
    """Return the metrics of the front and of all loaded models; with ?model=, those of one worker."""
    pool = _pool(request)
    if model is not None:
        return _Passed(ModelProxy(pool, "/metrics"))
    families = [(await _ask_loaded(request, each, "/metrics")).decode() for each in pool.models]
    return metrics_response(request, worker_families(request.app.state.metrics.registry, families))


@router.get("/api/tags", tags=["Ollama"], responses=error_responses())
async def all_tags(request: Request) -> dict[str, Any]:
    """List the models for Ollama's clients. Sizes and dates of models of the hub are known after their first load."""
    cards: list[Any] = []
    for model in _pool(request).models:
        if model.description is None:
            cards += [_UNKNOWN | {"name": n, "model": n} for n in model.names]
        else:
            cards += json.loads(model.description.answers["/api/tags"])["models"]
    return {"models": cards}


@router.post("/api/show", tags=["Ollama"], responses=error_responses(), response_model=None)
async def show_model(request: Request, body: OllamaShowRequest) -> AsciiJSONResponse:
    """Return the details of a model for Ollama's clients, without loading it."""
    pool = _pool(request)
    found = await run_until_disconnect(request.receive, pool.describe(pool.find(body.model or body.name)))
    return AsciiJSONResponse(json.loads(found.answers["/api/show"]))


@router.get("/api/ps", tags=["Ollama"], responses=error_responses())
async def loaded_models(request: Request) -> dict[str, Any]:
    """List the loaded models for Ollama's clients."""
    known = [await _ask_loaded(request, model, "/api/ps") for model in _pool(request).models]
    return {"models": [card for answer in known if answer for card in json.loads(answer)["models"]]}


_UNKNOWN = {"modified_at": "1970-01-01T00:00:00Z", "size": 0, "digest": "", "details": {"format": "gguf"}}


async def _ask_loaded(request: Request, model: PooledModel[Any], path: str) -> bytes:
    """Return what the worker of a model answers to the front; b"" if the model is not loaded."""
    if model.status != "loaded":
        return b""
    try:
        async with _pool(request).use(model, wake=False) as worker:
            return await fetch(worker, path)
    except PymtpError:  # it was unloaded, or has failed, since
        return b""


class _Passed(Response):
    """The answer of a worker to the request."""

    def __init__(self, proxy: ModelProxy) -> None:
        self._proxy, self.background = proxy, None
        self.status_code = 200
        self.init_headers()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._proxy(scope, receive, send)


def _card(model: PooledModel[Any], name: str) -> RoutedModel:
    value: Any = "unloaded" if model.status == "unloading" else model.status
    if model.status == "unloaded" and model.task is not None and not model.task.done():
        value = "loading"  # it waits until there is room
    failed = model.failure and model.status == "unloaded"
    status = ModelStatus(value=value, failed=True if failed else None, error=model.failure if failed else None)
    card = {} if model.description is None else model.description.card
    known = {key: card[key] for key in ("max_model_len", "meta") if key in card}
    return RoutedModel(id=name, created=START_TIME, status=status, **known)
