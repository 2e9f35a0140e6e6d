"""Pages of other origins, where they may ask."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from pymtp.server.settings import Settings


def let_pages_ask(app: Starlette, settings: Settings) -> None:
    """Adds what answers browsers, where settings.cors_origins names any."""
    if not settings.cors_origins:
        return
    options: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"], "max_age": 3600}
    shown = ["x-request-id", "retry-after"]
    app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origins, expose_headers=shown, **options)
