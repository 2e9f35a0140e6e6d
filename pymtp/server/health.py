"""The routes of /health and /version."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from pymtp.native.build_info import build_info

router = APIRouter(tags=["server"])


class Health(BaseModel):
    status: Literal["ok", "loading", "ending"]


class Version(BaseModel):
    version: str
    llama_cpp: str


@router.get("/v1/health", response_model=Health, responses={503: {"model": Health}})
@router.get("/health", response_model=Health, responses={503: {"model": Health}})
async def health(request: Request) -> JSONResponse:
    """Return status 200 if the server answers requests, and 503 during startup and shutdown. Needs no API key."""
    state = request.app.state
    status = "ending" if state.ending else "loading" if state.service is None else "ok"
    ready = status == "ok"
    return JSONResponse({"status": status}, 200 if ready else 503, None if ready else {"Retry-After": "1"})


@router.get("/version")
async def version() -> Version:
    """Return the version of pymtp, and the commit of llama.cpp that it was built with."""
    info = build_info()
    return Version(version=info["pymtp"], llama_cpp=info["llama_cpp_commit"])
