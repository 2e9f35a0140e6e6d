"""The router of all paths of Ollama's API."""

from __future__ import annotations

from fastapi import APIRouter

from pymtp.server.ollama import models, routes

router = APIRouter()
for part in (routes, models):
    router.include_router(part.router)
