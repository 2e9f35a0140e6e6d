"""Around all requests: a request id, and HEAD where there is GET."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Front:
    """Every answer has the request's id: the one that the client gave as X-Request-Id, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        # the server in front of the app leaves out the body that an answer to HEAD must not have
        method = "GET" if scope["method"] == "HEAD" else scope["method"]

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["request-id"] = request_id  # where Anthropic's clients look
            await send(message)

        await self._app({**scope, "method": method}, receive, send_named)
