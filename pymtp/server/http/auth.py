"""API keys: the middleware that checks them, and the security entries of the schema."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pymtp.server.http.errors import ErrorInfo, error_response

# Paths that need no API key: health checks, the schema, and the web pages, which ask the user for a key themselves.
PUBLIC_PATHS = ("/", "/favicon.ico", "/health", "/v1/health", "/figures.html", "/openapi.json")
PUBLIC_FOLDER = "/static/"


class ApiKeyMiddleware:
    """Refuse requests without a valid API key in the header `Authorization: Bearer …` or `x-api-key`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_public(scope["path"]) or scope["method"] == "OPTIONS" or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        missing = ErrorInfo(401, "the API key is missing or unknown", code="invalid_api_key")
        await error_response(Request(scope), missing, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # A valid key in either header is enough, because clients that use one header may send a dummy in the other one.
        given = [token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        digests = [sha256(key.encode("latin-1")).digest() for key in given]  # Starlette decodes headers as Latin-1
        # All digests are compared in constant time, so that the response time reveals nothing about the keys.
        return any([compare_digest(digest, known) for digest in digests for known in self._digests])


def _is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER)


def add_security_schemes(app: FastAPI) -> None:
    """Mark the paths that need an API key in the application's OpenAPI schema."""
    schema = app.openapi()  # the application caches this object, so the changes below stay
    schema.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in schema["paths"].items():
        for operation in operations.values() if not _is_public(path) else ():
            operation["security"] = [{"bearer": []}, {"x-api-key": []}]
