"""Middleware for the paths of requests: with and without /v1, and with a slash at the end."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.applications import Starlette
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

VERSION = "/v1"


class PathSpellingMiddleware:
    """Route requests for a path that does not exist to the path that the client means.

    Clients differ in the base URL that their users configure: some add /v1, others expect it in the base URL. Requests
    are not redirected, because many clients do not repeat a POST request after a redirection.
    """

    def __init__(self, app: ASGIApp, routes_of: Starlette) -> None:
        """routes_of: the application that has the routes."""
        self._app, self._routes_of = app, routes_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = next(filter(self._exists, _spellings(scope["path"])), scope["path"])
            if path != scope["path"]:
                scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)

    def _exists(self, path: str) -> bool:
        scope = {"type": "http", "path": path, "method": "GET", "headers": []}
        return any(route.matches(scope)[0] != Match.NONE for route in self._routes_of.router.routes)


def _spellings(path: str) -> Iterator[str]:
    """Yield the paths that a client may mean, the likeliest first: all without the slashes at the end."""
    path = path.rstrip("/") or "/"
    yield path
    if path.startswith(f"{VERSION}/"):
        yield path.removeprefix(VERSION)
    else:
        yield VERSION + path
