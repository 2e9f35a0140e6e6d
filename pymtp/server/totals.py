"""The route of /figures: the engine's statistics as JSON, for the page of figures."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from pymtp.engine.engine_stats import Figures
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.response_schema import error_responses

router = APIRouter(tags=["server"])


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


@router.get("/figures", responses=error_responses())
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
