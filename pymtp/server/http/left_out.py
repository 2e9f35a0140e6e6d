"""The keywords of a request's schemas that no grammar can express, in the answer's header x-pymtp-ignored."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

IGNORED_HEADER = "x-pymtp-ignored"
MAX_NAMES = 16  # keywords in the header
MAX_NAME_CHARACTERS = 200
_IN_NAMES = "#/$.[]^()*+~"  # characters that are written as they are: header values are ASCII, and "," separates names

_left_out: ContextVar[dict[str, None] | None] = ContextVar("left_out", default=None)


def note_left_out(names: Iterable[str]) -> None:
    """Note keywords for the header of the answer to the current HTTP request, if it has not begun."""
    noted = _left_out.get()
    if noted is not None:
        noted |= dict.fromkeys(names)


class LeftOutMiddleware:
    """Add the keywords that were noted while a request was prepared to the answer's header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        noted: dict[str, None] = {}
        token = _left_out.set(noted)

        async def send_with_names(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400 and noted:
                headers = MutableHeaders(scope=message)
                names = [quote(name, safe=_IN_NAMES)[:MAX_NAME_CHARACTERS] for name in [*noted][:MAX_NAMES]]
                headers[IGNORED_HEADER] = ", ".join(filter(None, [headers.get(IGNORED_HEADER), *names]))
            await send(message)

        try:
            await self._app(scope, receive, send_with_names)
        finally:
            _left_out.reset(token)
