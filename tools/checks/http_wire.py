"""HTTP/1.1 as a client may speak it that leaves in the middle, reads slowly, or sends half of its body."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """headers: their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Raises ValueError for what is no JSON."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """What a stream's `data:` lines hold, without [DONE]. Raises ValueError for a stream that is not whole."""
        lines = self.body.decode().split("\n")
        if lines[-1]:
            raise ValueError(f"the stream ends within a line: {lines[-1][-200:]!r}")
        found = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        return [json.loads(data) for data in found if data != "[DONE]"]


class Connection:
    """One connection, for one request after the other."""

    def __init__(self, host: str, port: int, *, small: bool = False) -> None:
        """small: it takes little at a time."""
        self._socket = socket.socket()
        self._address, self._small = (host, port), small
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.usable = False  # for a further request

    async def open(self) -> Connection:
        """Raises OSError."""
        self._socket.setblocking(False)
        if self._small:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(self._socket, self._address)
        self._reader, self._writer = await asyncio.open_connection(
            sock=self._socket, limit=4096 if self._small else 2**16
        )
        return self

    async def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """A request. Where the server does not take it all, its answer may be there all the same."""
        given = {"Host": self._address[0], "Content-Length": str(len(body)), **(headers or {})}
        if body:
            given.setdefault("Content-Type", "application/json")
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        with suppress(ConnectionError):
            await self._writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the answer. Raises ConnectionError and EOFError where there is none."""
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        return int(first.split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def parts(self, headers: Mapping[str, str], most: int = 2**16) -> AsyncIterator[bytes]:
        """The body as it comes, at most so many bytes at a time. Raises as `head` where it is cut off."""
        self.usable = False
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                async for part in self._exactly(size, most):
                    yield part
                await self._reader.readexactly(2)
            await self._reader.readexactly(2)
        else:
            async for part in self._exactly(int(headers.get("content-length", 0)), most):
                yield part
        self.usable = headers.get("connection", "").lower() != "close"

    async def _exactly(self, size: int, most: int) -> AsyncIterator[bytes]:
        while size:
            part = await self._reader.read(min(size, most))
            if not part:
                raise EOFError("the answer is cut off")
            size -= len(part)
            yield part

    async def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """A request and its whole answer. Raises as `head`."""
        await self.send(method, path, body, headers)
        status, got = await self.head()
        return Answer(status, got, b"".join([part async for part in self.parts(got)]))

    def leave(self, *, rudely: bool = False) -> None:
        """Closes it. rudely: by a reset, as where the process or its network is gone."""
        self.usable = False
        if rudely:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if hasattr(self, "_writer"):
            self._writer.transport.abort() if rudely else self._writer.close()
        else:
            self._socket.close()
