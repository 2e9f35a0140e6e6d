"""/v1/models, and what llama.cpp's clients ask for about the model."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from pymtp.openai.requests import CHAT, open_params
from pymtp.openai.responses import fingerprint
from pymtp.server.dependencies import CurrentService
from pymtp.server.errors import UnknownModelError
from pymtp.server.http.responses_of import failures_of
from pymtp.server.service import Service
from pymtp.validation import shown

router = APIRouter(tags=["OpenAI"])
STARTED = int(time.time())


class ModelMeta(BaseModel):
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    mtp: bool
    sampling: dict[str, int | float] = Field(description="What a chat leaves open. A seed of -1 is any.")


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pymtp"
    max_model_len: int
    meta: ModelMeta


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Props(BaseModel):
    """As llama.cpp's server tells them."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    build_info: str


@router.get("/v1/models", responses=failures_of())
@router.get("/models", include_in_schema=False)
async def models(service: CurrentService) -> ModelList:
    """The model, by each of its names."""
    return ModelList(data=[_card(service, name) for name in service.model_names])


@router.get("/v1/models/{name:path}", responses=failures_of())
async def model(service: CurrentService, name: Annotated[str, Path(description="One of /v1/models.")]) -> ModelCard:
    """One of them."""
    if name not in service.model_names:
        raise UnknownModelError(f"there is no model {shown(name)}: there is {', '.join(service.model_names)}")
    return _card(service, name)


def _card(service: Service, name: str) -> ModelCard:
    llm = service.llm.llm
    meta = ModelMeta(
        n_vocab=llm.model.n_vocab,
        n_ctx=llm.context.n_ctx,
        n_ctx_train=llm.model.n_ctx_train,
        mtp=llm.model.mtp,
        sampling=_sampling(service),
    )
    return ModelCard(id=name, created=STARTED, max_model_len=llm.context.n_ctx, meta=meta)


def _sampling(service: Service) -> dict[str, float]:
    """By the names that llama.cpp's server has, and that requests may have."""
    params = open_params(CHAT, service.sampling)
    return {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": params.penalty_last_n,
        "seed": -1 if params.seed is None else params.seed,
    }


@router.get("/props", tags=["llama.cpp"], responses=failures_of())
async def props(service: CurrentService) -> Props:
    """What llama.cpp's clients want to know."""
    llm = service.llm.llm
    return Props(
        default_generation_settings={"n_ctx": llm.context.n_ctx, "params": _sampling(service)},
        total_slots=llm.context.n_seq_max,
        model_path=llm.model.path.name,
        chat_template=llm.template_source or "",
        modalities={"vision": False, "audio": False},
        build_info=fingerprint(),
    )
