"""What the engine does, as JSON: the page of figures asks for it."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from pymtp.engine.engine_stats import Figures
from pymtp.server.dependencies import CurrentService
from pymtp.server.http.responses_of import failures_of

router = APIRouter(tags=["server"])


class DeviceBytes(BaseModel):
    """Of a device: the model's weights, the caches and the buffers."""

    device: str
    total: int


class EngineFigures(BaseModel):
    """places: texts that are written at once, of n_ctx tokens at most. open: texts that run or wait."""

    places: int
    n_ctx: int
    open: int
    engine: Figures
    memory: list[DeviceBytes]


@router.get("/figures", responses=failures_of())
async def figures(service: CurrentService) -> EngineFigures:
    """What the engine does, and did since the model was loaded."""
    llm = service.llm.llm
    memory = await service.memory()
    return EngineFigures(
        places=llm.context.n_seq_max,
        n_ctx=llm.context.n_ctx,
        open=service.n_open,
        engine=llm.figures(),
        memory=[DeviceBytes(device=each.device, total=each.total) for each in memory],
    )
