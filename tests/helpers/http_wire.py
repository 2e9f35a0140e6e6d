"""An HTTP/1.1 client that can disconnect in the middle, also by a reset."""

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
    """A response. headers: with names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Parse the body as JSON. Raises ValueError for invalid JSON."""
        return json.loads(self.body)


class Connection:
    """A connection for requests one after the other."""

    def __init__(self, host: str, port: int) -> None:
        """Make a connection without opening it."""
        self._socket = socket.socket()
        self._address = (host, port)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> Connection:
        """Open the connection. Raises OSError."""
        self._socket.setblocking(False)
        await asyncio.get_running_loop().sock_connect(self._socket, self._address)
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        return self

    async def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a request. The server may answer although it does not read the whole body."""
        given = {"Host": self._address[0], "Content-Length": str(len(body)), **(headers or {})}
        if body:
            given.setdefault("Content-Type", "application/json")
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        with suppress(ConnectionError):
            await self._writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the status and headers of the response. Raises ConnectionError or EOFError if there is none."""
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        return int(first.split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def parts(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises as `head` if it is cut off."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield await self._reader.readexactly(size)
                await self._reader.readexactly(2)
            await self._reader.readexactly(2)
        else:
            yield await self._reader.readexactly(int(headers.get("content-length", 0)))

    async def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request, and return its whole response. Raises as `head`."""
        await self.send(method, path, body, headers)
        status, got = await self.head()
        return Answer(status, got, b"".join([part async for part in self.parts(got)]))

    def leave(self, *, rudely: bool = False) -> None:
        """Close the connection. rudely: by a reset, as if the process or its network had failed."""
        if rudely:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if hasattr(self, "_writer"):
            self._writer.transport.abort() if rudely else self._writer.close()
        else:
            self._socket.close()
