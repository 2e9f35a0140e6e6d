"""Middleware that decides who may send requests: names in Host headers, API keys, and origins of web pages.

The Host header is checked as a protection against DNS rebinding: a browser loads a web page from an attacker's domain,
and the attacker then changes the domain's address to that of this machine. The page could now send requests to a server
that should serve this machine only.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pymtp.server.http.errors import ErrorInfo, error_response
from pymtp.server.http.middleware import KEY_DIGEST
from pymtp.server.settings import LOCAL_ORIGINS, ServerSettings

# Paths that need no API key: health checks, the schema, and the web pages, which ask the user for a key themselves.
PUBLIC_PATHS = ("/", "/favicon.ico", "/health", "/v1/health", "/figures.html", "/openapi.json")
PUBLIC_FOLDER = "/static/"
_PRIVATE_NETWORK = b"access-control-request-private-network"
# an origin of pages of this machine, for LOCAL_ORIGINS
_LOCAL_ORIGIN = r"https?://(localhost|([a-z0-9-]+\.)+localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?"
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)(?:%[^\]]*)?\]|(?P<name>[^\[\]:@/]*))(?::\d*)?")


class AllowedHostsMiddleware:
    """Refuse requests whose Host header is neither an IP address nor localhost nor one of the given names.

    Requests without a Host header are allowed, because no browser sends such requests. Starlette's
    TrustedHostMiddleware is not used: it cannot allow all IP addresses, and its refusals are not JSON.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app, self._names = app, {_normalized(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = Headers(scope=scope).getlist("host") if scope["type"] == "http" else []
        refused_host = next((host for host in hosts if not self._is_allowed(host)), None)
        if refused_host is None:
            await self._app(scope, receive, send)
            return
        message = (
            f"requests for the host {refused_host!r:.80} are not allowed: use --allowed-host NAME to allow a host name"
        )
        error = ErrorInfo(403, message, "permission_error", "host_not_allowed")
        await error_response(Request(scope), error, {"Connection": "close"})(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        if match["v6"] is not None:
            return True
        name = _normalized(match["name"])
        return name in self._names or name in ("", "localhost") or name.endswith(".localhost") or _is_address(name)


def _normalized(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True


class ApiKeyMiddleware:
    """Refuse requests without a valid API key in the header `Authorization: Bearer …` or `x-api-key`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        digest = self._digest_of_key(scope)
        if digest is not None:
            scope.setdefault("state", {})[KEY_DIGEST] = digest.hex()
        if digest is not None or _is_public(scope["path"]) or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        missing = ErrorInfo(401, "the API key is missing or unknown", "authentication_error", "invalid_api_key")
        await error_response(Request(scope), missing, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _digest_of_key(self, scope: Scope) -> bytes | None:
        """Return the digest of the request's key if it is valid."""
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # A valid key in either header is enough, because clients that use one header may send a dummy in the other one.
        given = [token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        digests = [sha256(key.encode("latin-1")).digest() for key in given]  # Starlette decodes headers as Latin-1
        # All digests are compared in constant time, so that the response time reveals nothing about the keys.
        matches = [known for digest in digests for known in self._digests if compare_digest(digest, known)]
        return matches[0] if matches else None


def _is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER)


def add_security_schemes(app: FastAPI) -> None:
    """Mark the paths that need an API key in the application's OpenAPI schema.

    The schema takes a second to make, so it is made for the first request, and not at the start.
    """
    without = app.openapi

    @cache
    def schema() -> dict[str, Any]:
        found = without()
        found.setdefault("components", {})["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        for path, operations in found["paths"].items():
            for operation in operations.values() if not _is_public(path) else ():
                operation["security"] = [{"bearer": []}, {"x-api-key": []}]
        return found

    app.openapi = schema  # type: ignore[method-assign]


class PageOriginsMiddleware(CORSMiddleware):
    """Starlette's CORS middleware, which also lets pages of the allowed origins reach a private network.

    Chrome asks for this before a public page may send a request to a private or local address. Older versions of
    Starlette do not know the question, and newer ones refuse it by default.

    A preflight of another origin gets the headers of any OPTIONS request, without permissions, as from llama-server.
    """

    def preflight_response(self, request_headers: Headers) -> Response:
        """Extend Starlette's method."""
        others = [(name, value) for name, value in request_headers.raw if name != _PRIVATE_NETWORK]
        if not self.is_allowed_origin(request_headers["origin"]):
            return Response(headers={"Vary": "Origin"})
        response = super().preflight_response(Headers(raw=others))
        if len(others) < len(request_headers.raw) and response.status_code == 200:
            response.headers["Access-Control-Allow-Private-Network"] = "true"
        return response


def add_cors(app: Starlette, settings: ServerSettings) -> None:
    """Add the CORS middleware if settings.cors_origins has at least one origin."""
    if not settings.cors_origins:
        return
    app.add_middleware(
        PageOriginsMiddleware,
        allow_origins=settings.cors_origins,
        allow_origin_regex=_LOCAL_ORIGIN if LOCAL_ORIGINS in settings.cors_origins else None,
        allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
        max_age=3600,
    )
