"""A server of the pages whose responses are scripted by a test, byte for byte."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from pymtp.server import pages

Piece = bytes | Callable[[], object]

DONE = b"data: [DONE]\n\n"


def delta(reason: str | None = None, *, extension: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chunk of a chat completion's stream. extension: its pymtp object."""
    choice = {"index": 0, "delta": fields, "finish_reason": reason}
    return {"choices": [choice]} | ({} if extension is None else {"pymtp": extension})


def sse(*chunks: dict[str, Any], ascii_only: bool = False) -> bytes:
    """Encode chunks as events."""
    texts = [json.dumps(chunk, ensure_ascii=ascii_only) for chunk in chunks]
    return b"".join(b"data: " + text.encode() + b"\n\n" for text in texts)


def said(text: str, reason: str = "stop") -> bytes:
    """Encode the stream of a whole answer."""
    return sse(delta(content=text), delta(reason)) + DONE


class ScriptedServer:
    """A server that answers each chat with the next entry of `answers`: a Response, or pieces of a stream's body.

    A piece that is a function is called on a thread, and the stream waits for it.

    requests: the bodies of the requests. disconnects: the number of streams that their client left.
    """

    def __init__(self) -> None:
        self.reset()
        app = FastAPI()
        app.include_router(pages.router)
        app.get("/v1/models")(self._models)
        app.post("/v1/chat/completions", response_model=None)(self._chat)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()  # connections before the server runs wait in the backlog
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Reset the script and the records."""
        self.answers: list[Response | Sequence[Piece]] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.disconnects = 0
        self.models: Response = JSONResponse({"data": [{"id": "scripted"}]})

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _models(self) -> Response:
        return self.models

    async def _chat(self, request: Request) -> Response:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        answer = self.answers.pop(0)
        if isinstance(answer, Response):
            return answer
        return StreamingResponse(self._pieces(answer), media_type="text/event-stream")

    async def _pieces(self, pieces: Sequence[Piece]) -> AsyncIterator[bytes]:
        try:
            for piece in pieces:
                if isinstance(piece, bytes):
                    yield piece
                else:
                    await asyncio.to_thread(piece)
        except asyncio.CancelledError:
            self.disconnects += 1
            raise


@pytest.fixture(scope="module")
def scripted_server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture
def scripted(scripted_server: ScriptedServer) -> ScriptedServer:
    """Return the server with an empty script."""
    scripted_server.reset()
    return scripted_server
