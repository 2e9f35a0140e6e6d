"""Which hosts a server is asked for. Whoever owns a name can let it mean this machine once a browser has a page by that
name (DNS rebinding): the page could then ask a server that was to be reached from here alone."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pymtp.server.http.errors import Failure, error_response

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)(?:%[^\]]*)?\]|(?P<name>[^\[\]:@/]*))(?::\d*)?")


class Hosts:
    """Refuses requests for other hosts than addresses, localhost and those of given names. Those for no host come from
    no browser. (Starlette's TrustedHostMiddleware knows no addresses, and answers with plain text.)"""

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app, self._names = app, {_plain(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope).getlist("host") if scope["type"] == "http" else []
        strange = next((host for host in asked if not self._knows(host)), None)
        if strange is None:
            await self._app(scope, receive, send)
            return
        said = f"no requests for the host {strange!r:.80} are taken: --allowed-host NAME lets those for a name in"
        refused = Failure(403, said, "permission_error", "host_not_allowed")
        await error_response(Request(scope), refused, {"Connection": "close"})(scope, receive, send)

    def _knows(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        if found["v6"] is not None:
            return True
        name = _plain(found["name"])
        return name in self._names or name in ("", "localhost") or name.endswith(".localhost") or _is_address(name)


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True
