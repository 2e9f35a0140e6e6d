"""/figures: the engine's counters as JSON, for the page of figures."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from pymtp.engine.engine_stats import Figures
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.response_schema import error_responses

router = APIRouter(tags=["server"])


class DeviceBytes(BaseModel):
    """The memory of one device: the model's weights, the caches and the buffers together."""

    device: str
    total: int


class EngineFigures(BaseModel):
    """Counters of the engine. places: its slots, each of n_ctx tokens. open: completions that run or wait."""

    places: int
    n_ctx: int
    open: int
    engine: Figures
    memory: list[DeviceBytes]


@router.get("/figures", responses=error_responses())
async def figures(service: ServiceDep) -> EngineFigures:
    """Return what runs now, and the counters since the model was loaded."""
    llm = service.llm.llm
    memory = await service.memory()
    return EngineFigures(
        places=llm.context.n_seq_max,
        n_ctx=llm.context.n_ctx,
        open=service.n_unfinished,
        engine=llm.figures(),
        memory=[DeviceBytes(device=device.device, total=device.total) for device in memory],
    )
