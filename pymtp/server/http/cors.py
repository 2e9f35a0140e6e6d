"""CORS: permission for web pages of other origins to send requests."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from pymtp.server.settings import ServerSettings


def add_cors(app: Starlette, settings: ServerSettings) -> None:
    """Add Starlette's CORS middleware if settings.cors_origins has at least one origin."""
    if not settings.cors_origins:
        return
    options: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"], "max_age": 3600}
    exposed = ["x-request-id", "retry-after"]
    app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origins, expose_headers=exposed, **options)
