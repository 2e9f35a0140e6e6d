"""Middleware that logs, once for each client, what the answers' header x-pymtp-ignored names."""

from __future__ import annotations

from collections import OrderedDict

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymtp.server.metrics.logs import log

IGNORED_HEADER = "x-pymtp-ignored"
MAX_CLIENTS = 1000  # clients that are remembered; the log may name the ignored parts again for all others
MAX_LINES = 16  # log lines for one client
MAX_AGENT_CHARACTERS = 80  # the most characters of a client's name in a log line


class IgnoredLogMiddleware:
    """Log a warning if a client's requests have fields or tools that change nothing, once for each of them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._seen: OrderedDict[tuple[str, str], set[str]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_and_log(message: Message) -> None:
            if message["type"] == "http.response.start" and (
                names := Headers(raw=message["headers"]).get(IGNORED_HEADER)
            ):
                self._log(scope, names)
            await send(message)

        await self._app(scope, receive, send_and_log)

    def _log(self, scope: Scope, names: str) -> None:
        address = scope["client"][0] if scope.get("client") else ""
        agent = Headers(scope=scope).get("user-agent", "")[:MAX_AGENT_CHARACTERS]
        seen = self._seen.setdefault((address, agent), set())
        self._seen.move_to_end((address, agent))
        if len(self._seen) > MAX_CLIENTS:
            self._seen.popitem(last=False)
        if names in seen or len(seen) >= MAX_LINES:
            return
        seen.add(names)
        fields = {"client": address, "user_agent": agent, "path": scope["path"], "ignored": names}
        log.warning("parts of a request change nothing", extra={"fields": fields})
