"""Middleware for requests of Ollama's API without the type of their body, as `curl -d` sends them."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from pymtp.server.http.errors import OLLAMA_PREFIX


class JsonTypeMiddleware:
    """Give POST requests for Ollama's paths the type application/json, whatever type they name.

    Ollama reads each body as JSON, and clients rely on it. Requests of a browser keep their type, because pages of
    other sites may send some types without being asked: browsers add Origin or Sec-Fetch-Site to each POST request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith(OLLAMA_PREFIX):
            headers = MutableHeaders(raw=list(scope["headers"]))
            if "origin" not in headers and "sec-fetch-site" not in headers:
                headers["content-type"] = "application/json"
                scope = {**scope, "headers": headers.raw}
        await self._app(scope, receive, send)
