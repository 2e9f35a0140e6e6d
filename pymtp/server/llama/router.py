"""The router of all endpoints of llama.cpp's server."""

from __future__ import annotations

from fastapi import APIRouter

from pymtp.server.llama import embeddings, info, predict, rerank, routes

router = APIRouter()
for part in (routes, embeddings, rerank, predict, info):
    router.include_router(part.router)
