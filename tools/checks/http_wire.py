"""An HTTP/1.1 client that can disconnect in the middle, read slowly, or send half of a body."""

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

    def events(self) -> list[Any]:
        """Parse the `data:` lines of a stream, without [DONE]. Raises ValueError for an incomplete stream."""
        lines = self.body.decode().split("\n")
        if lines[-1]:
            raise ValueError(f"the stream ends within a line: {lines[-1][-200:]!r}")
        found = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        return [json.loads(data) for data in found if data != "[DONE]"]


class Connection:
    """A connection for requests one after the other."""

    def __init__(self, host: str, port: int, *, small: bool = False) -> None:
        """Make a connection without opening it. small: with small receive buffers."""
        self._socket = socket.socket()
        self._address, self._small = (host, port), small
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.usable = False  # for another request

    async def open(self) -> Connection:
        """Open the connection. Raises OSError."""
        self._socket.setblocking(False)
        if self._small:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(self._socket, self._address)
        self._reader, self._writer = await asyncio.open_connection(
            sock=self._socket, limit=4096 if self._small else 2**16
        )
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

    async def parts(self, headers: Mapping[str, str], most: int = 2**16) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, at most so many bytes at a time. Raises as `head` if it is cut off."""
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
        """Send a request, and return its whole response. Raises as `head`."""
        await self.send(method, path, body, headers)
        status, got = await self.head()
        return Answer(status, got, b"".join([part async for part in self.parts(got)]))

    def leave(self, *, rudely: bool = False) -> None:
        """Close the connection. rudely: by a reset, as if the process or its network had failed."""
        self.usable = False
        if rudely:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if hasattr(self, "_writer"):
            self._writer.transport.abort() if rudely else self._writer.close()
        else:
            self._socket.close()
