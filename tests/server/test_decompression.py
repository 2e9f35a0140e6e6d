"""Tests of compressed request bodies: they are decompressed within the limit of bodies."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from pymtp.server.http.decompression import DecompressionMiddleware

BODY = b'{"content": "a"}' + b" " * 100
LIMIT = 10_000


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


def response_to(body: bytes, *codings: str) -> tuple[int, Any]:
    """Send a body, and return the status and the body that came: 200 and that of the request if it was passed on."""
    sent: list[Message] = []
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        headers = Headers(scope=scope)
        assert headers.get("content-encoding", "identity") == "identity"
        assert int(headers["content-length"]) == len(message["body"])
        sent.extend([{"status": 200}, message])

    async def receive() -> Message:
        return whole.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    lines = [(b"content-encoding", coding.encode()) for coding in codings] + [(b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": "/tokenize", "headers": lines, "query_string": b"", "state": {}}
    asyncio.run(DecompressionMiddleware(app, LIMIT)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(
    ("body", "codings"),
    [
        (BODY, ()),
        (BODY, ("identity",)),
        (gzip.compress(BODY), ("gzip",)),
        (gzip.compress(BODY), ("GZip",)),
        (gzip.compress(BODY), ("x-gzip",)),
        (gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]), ("gzip",)),
        (zlib.compress(BODY), ("deflate",)),
        (raw_deflate(BODY), ("deflate",)),
        (gzip.compress(zlib.compress(BODY)), ("deflate, gzip",)),
        (gzip.compress(zlib.compress(BODY)), ("deflate", "gzip")),
    ],
    ids=lambda value: "body" if isinstance(value, bytes) else "-".join(value),
)
def test_body_is_decompressed(body: bytes, codings: tuple[str, ...]) -> None:
    assert response_to(body, *codings) == (200, BODY)


@pytest.mark.parametrize(
    ("body", "coding", "status", "reason"),
    [
        (BODY, "br", 415, "'br' is not supported: send gzip, deflate or no coding"),
        (BODY, "gzip, zstd", 415, "'zstd' is not supported"),
        (BODY, "gzip, gzip, gzip", 415, "more than 2 codings"),
        (BODY, "gzip", 400, "the body is not gzip"),
        (gzip.compress(BODY)[:-9], "gzip", 400, "the body is not gzip: it is incomplete"),
        (gzip.compress(BODY)[:-4] + b"abcd", "gzip", 400, "the body is not gzip"),
        (b"\x78", "deflate", 400, "the body is not deflate"),
        (gzip.compress(b" " * (LIMIT + 1)), "gzip", 413, f"the decompressed body has more than {LIMIT} bytes"),
        (gzip.compress(b" " * LIMIT) * 2, "gzip", 413, "the decompressed body has more than"),
        (gzip.compress(b"") * 65, "gzip", 400, "the body is not gzip: it has more than 64 members"),
    ],
    ids=lambda value: "body" if isinstance(value, bytes) else str(value),
)
def test_body_that_cannot_be_decompressed_is_refused(body: bytes, coding: str, status: int, reason: str) -> None:
    found, answer = response_to(body, coding)
    assert found == status
    assert reason in json.loads(answer)["error"]["message"]


def test_body_of_the_limit_is_decompressed() -> None:
    assert response_to(gzip.compress(b" " * LIMIT), "gzip") == (200, b" " * LIMIT)


def test_decompression_stops_at_the_limit() -> None:
    bomb = gzip.compress(b" " * 2**26)
    nested = gzip.compress(bomb)
    tracemalloc.start()
    assert response_to(bomb, "gzip")[0] == response_to(nested, "gzip, gzip")[0] == 413
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22


def test_server_answers_a_compressed_request(server: Server) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = httpx.post(f"{server.url}/tokenize", content=gzip.compress(BODY), headers=headers, timeout=LONG)
    assert (answer.status_code, answer.json()["count"]) == (200, 1)
    wrong = httpx.post(
        f"{server.url}/tokenize", content=BODY, headers=headers | {"Content-Encoding": "br"}, timeout=LONG
    )
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (415, "unsupported_content_encoding")


def test_compressed_request_is_counted_by_its_route(server: Server) -> None:
    def count() -> float:
        text = httpx.get(f"{server.url}/metrics", timeout=LONG).text
        (line,) = [one for one in text.splitlines() if 'route="/tokenize",status="200"' in one]
        return float(line.split()[-1])

    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    httpx.post(f"{server.url}/tokenize", json={"content": "a"}, timeout=LONG)
    before = count()
    httpx.post(f"{server.url}/tokenize", content=gzip.compress(BODY), headers=headers, timeout=LONG)
    assert count() == before + 1
