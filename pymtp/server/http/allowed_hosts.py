"""The middleware that checks the Host header, as a protection against DNS rebinding.

In DNS rebinding, a browser loads a web page from an attacker's domain, and the attacker then changes the domain's
address to that of this machine. The page could now send requests to a server that should serve this machine only.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pymtp.server.http.errors import ErrorInfo, error_response

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
