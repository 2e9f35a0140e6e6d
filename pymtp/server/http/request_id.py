"""The middleware that gives request ids, and that handles HEAD requests."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIdMiddleware:
    """Give each request an id: the client's X-Request-Id, or a new id. Also handles HEAD requests as GET requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get("x-request-id", "")
        request_id = client_id if _ID.fullmatch(client_id) else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        # HEAD is routed as GET; uvicorn does not send the body of a response to HEAD.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["request-id"] = request_id  # the name of the header that Anthropic's clients read
            await send(message)

        await self._app({**scope, "method": method}, receive, send_with_id)
