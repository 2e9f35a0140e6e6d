"""Routes about the server and its model: /health, /version, /figures, /v1/models and llama.cpp's /props."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from pymtp.native.build_info import build_info
from pymtp.openai.prompt_texts import MEDIA_MARKER
from pymtp.openai.request_body import CHAT, read_params
from pymtp.openai.response_body import fingerprint
from pymtp.samplers import SAMPLER_RULES
from pymtp.server.dependencies import ServiceDep
from pymtp.server.errors import UnknownModelError
from pymtp.server.facts import ModelFacts
from pymtp.server.http.response_schema import error_responses
from pymtp.server.metrics.registry import START_TIME
from pymtp.stats import Figures
from pymtp.validation import shown

router = APIRouter()


class Health(BaseModel):
    status: Literal["ok", "loading", "ending"]


class Version(BaseModel):
    version: str
    llama_cpp: str


@router.get("/v1/health", tags=["server"], response_model=Health, responses={503: {"model": Health}})
@router.get("/health", tags=["server"], response_model=Health, responses={503: {"model": Health}})
async def health(request: Request) -> JSONResponse:
    """Return status 200 if the server answers requests, and 503 during startup and shutdown. Needs no API key."""
    state = request.app.state
    status = "ending" if state.ending else "loading" if state.service is None else "ok"
    ready = status == "ok"
    return JSONResponse({"status": status}, 200 if ready else 503, None if ready else {"Retry-After": "1"})


@router.get("/version", tags=["server"])
async def version() -> Version:
    """Return the version of pymtp, and the commit of llama.cpp that it was built with."""
    info = build_info()
    return Version(version=info["pymtp"], llama_cpp=info["llama_cpp_commit"])


class DeviceBytes(BaseModel):
    """The memory that is used on one device. total: the bytes of weights, caches and buffers."""

    device: str
    total: int


class EngineFigures(BaseModel):
    """Statistics of the engine.

    places: the number of slots.
    n_ctx: the number of tokens that a slot can hold.
    open: the number of completions that run or wait.
    engine: the engine's counters since the model was loaded.
    memory: the memory that is used on each device.
    """

    places: int
    n_ctx: int
    open: int
    engine: Figures
    memory: list[DeviceBytes]


@router.get("/figures", tags=["server"], responses=error_responses())
async def figures(service: ServiceDep) -> EngineFigures:
    """Return the state of the engine, and its counters since the model was loaded."""
    llm = service.llm.llm
    memory = await service.memory()
    return EngineFigures(
        places=llm.context.n_seq_max,
        n_ctx=llm.context.n_ctx,
        open=service.n_unfinished,
        engine=llm.figures(),
        memory=[DeviceBytes(device=device.device, total=device.total) for device in memory],
    )


class ModelMeta(BaseModel):
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    mtp: bool
    vision: bool = Field(description="Whether the model sees images.")
    sampling: dict[str, int | float] = Field(
        description="Default sampling parameters of a chat. Seed -1: a random seed."
    )


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pymtp"
    max_model_len: int
    meta: ModelMeta


class LlamaModel(BaseModel):
    """A model in the form of llama.cpp's server."""

    name: str
    model: str
    type: Literal["model"] = "model"
    capabilities: list[Literal["completion", "multimodal"]]


class ModelList(BaseModel):
    """The names of the model, in OpenAI's form and in that of llama.cpp's server."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    models: list[LlamaModel]


class Props(BaseModel):
    """Properties of the server, with the field names of /props of llama.cpp's server."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    media_marker: str
    build_info: str
    is_sleeping: bool = False


@router.get("/v1/models", tags=["OpenAI"], responses=error_responses())
@router.get("/models", include_in_schema=False)
async def models(service: ServiceDep) -> ModelList:
    """List the model once under each of its names."""
    facts = service.facts
    return ModelList(
        data=[model_card(facts, name) for name in facts.names],
        models=[LlamaModel(name=name, model=name, capabilities=_capabilities(facts)) for name in facts.names],
    )


@router.get("/v1/models/{name:path}", tags=["OpenAI"], responses=error_responses())
async def model(
    service: ServiceDep, name: Annotated[str, Path(description="One of the names that /v1/models lists.")]
) -> ModelCard:
    """Return the card of the model. name: one of the names of the model."""
    if name not in service.model_names:
        raise UnknownModelError(
            f"there is no model {shown(name)}; the model's names are {', '.join(service.model_names)}"
        )
    return model_card(service.facts, name)


def _capabilities(facts: ModelFacts) -> list[Literal["completion", "multimodal"]]:
    return ["completion", "multimodal"] if facts.sees_images else ["completion"]


def model_card(facts: ModelFacts, name: str) -> ModelCard:
    """Return the card of a model under one of its names."""
    meta = ModelMeta(
        n_vocab=facts.model.n_vocab,
        n_ctx=facts.n_ctx,
        n_ctx_train=facts.model.n_ctx_train,
        mtp=facts.model.mtp,
        vision=facts.sees_images,
        sampling=_sampling_defaults(facts),
    )
    return ModelCard(id=name, created=START_TIME, max_model_len=facts.n_ctx, meta=meta)


def _sampling_defaults(facts: ModelFacts) -> dict[str, float]:
    """Return the default sampling parameters by their names in llama.cpp's server. Requests may use these names."""
    params = read_params(CHAT, {}, facts.sampling)
    return {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": params.penalty_last_n,
        **{name: getattr(params, name) for name in SAMPLER_RULES if name != "dry_sequence_breakers"},
        "seed": -1 if params.seed is None else params.seed,
    }


@router.get("/props", tags=["OpenAI", "llama.cpp"], responses=error_responses())
async def props(service: ServiceDep) -> Props:
    """Return the properties of the server and its model."""
    return model_props(service.facts)


def model_props(facts: ModelFacts) -> Props:
    """Return the properties of a server with this model."""
    return Props(
        default_generation_settings={"n_ctx": facts.n_ctx, "params": _sampling_defaults(facts)},
        total_slots=facts.n_seq_max,
        model_alias=facts.names[0],
        model_path=facts.model.path.name,
        chat_template=facts.template or "",
        bos_token=facts.model.bos_token,
        eos_token=facts.model.eos_token,
        modalities={"vision": facts.sees_images, "video": False, "audio": False},
        media_marker=MEDIA_MARKER,
        build_info=fingerprint(),
    )
