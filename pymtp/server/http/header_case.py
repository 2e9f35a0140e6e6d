"""Header names in their usual case: uvicorn writes them in lower case, and scripts look for `Content-Type`."""

from __future__ import annotations

import re
from typing import Any

_WORD_START = re.compile(rb"(?:^|-)[a-z]")


def capitalize_headers(cycle: Any) -> None:
    """Let a uvicorn RequestResponseCycle write the head of its response with capitalized header names."""
    cycle.transport = _HeadWriter(cycle)


class _HeadWriter:
    """Takes the place of the transport of a cycle until the head of the response is written."""

    def __init__(self, cycle: Any) -> None:
        self._cycle, self._transport = cycle, cycle.transport

    def write(self, data: bytes) -> None:
        """Write the head, and give the cycle its transport back. `100 Continue` may come before the head."""
        if self._cycle.response_started:
            self._cycle.transport = self._transport
            data = capitalized(data)
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def is_closing(self) -> bool:
        closing: bool = self._transport.is_closing()
        return closing


def capitalized(head: bytes) -> bytes:
    """Return the head of a response with each word of its header names capitalized."""
    status, *lines = head.split(b"\r\n")
    fields = (line.partition(b":") for line in lines)
    titled = (_WORD_START.sub(lambda match: match[0].upper(), name) + colon + value for name, colon, value in fields)
    return b"\r\n".join([status, *titled])
