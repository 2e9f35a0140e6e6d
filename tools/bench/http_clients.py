"""Clients that stream answers of a server, all in one loop over their sockets, and the parts of an answer."""

from __future__ import annotations

import json
import re
import selectors
import socket
from collections.abc import Sequence


def send_all(host: str, port: int, contents: Sequence[bytes], path: str) -> list[bytes]:
    """Send all requests at once, each on its own connection. Return the whole answers, with headers."""
    received: list[list[bytes]] = [[] for _ in contents]
    with selectors.DefaultSelector() as selector:
        for i, content in enumerate(contents):
            client = socket.create_connection((host, port))
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
            client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ, i)
        while selector.get_map():
            for key, _ in selector.select():
                client = key.fileobj  # type: ignore[assignment]
                data = client.recv(2**18)
                received[key.data].append(data)
                if not data:
                    selector.unregister(client)
                    client.close()
    return [b"".join(parts) for parts in received]


def completion_tokens(answer: bytes) -> int:
    """Return the completion tokens in a stream's usage. Raises ValueError for an incomplete stream."""
    counts = re.findall(rb'"completion_tokens": ?(\d+)', answer)
    if not counts or b"data: [DONE]" not in answer[-200:]:
        raise ValueError(f"no whole answer: {answer[-2000:].decode(errors='replace')}")
    return int(counts[-1])


def texts_of(answer: bytes) -> str:
    """Return the whole text of a streamed chat or completion."""
    chunks = [json.loads(data) for data in re.findall(rb"^data: (\{.*)", answer, re.MULTILINE)]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(c["delta"].get("content") or "" if "delta" in c else c["text"] for c in choices)
