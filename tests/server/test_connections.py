"""Tests of connections: idle connections, endless headers, too many connections."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from helpers.served import Served
from helpers.servers import LONG, Server, wait_until

from pymtp.server.http import connection
from pymtp.server.process import http_server

MakeServer = Callable[..., Server]
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), LONG) as client:
        yield client


def is_ended(client: socket.socket) -> bool:
    """Read until the server closes the connection."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("said", [b"", b"\r\n", GET, GET + b"\r\n", GET + b"\r\n" + GET])
def test_idle_connection_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(connection, "IDLE_TIMEOUT", 0.1)
    with connected(server) as client:
        client.sendall(said)
        assert is_ended(client)


def test_connection_with_slow_headers_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_TIMEOUT", 0.1)
    with connected(server) as client:
        client.sendall(GET)
        client.setblocking(False)

        def gone() -> bool:
            try:
                client.sendall(b"a")
                return not client.recv(100)
            except BlockingIOError:
                return False
            except OSError:
                return True

        wait_until(gone)


@pytest.mark.parametrize("more", [b"", GET], ids=["alone", "before another"])
def test_idle_timeout_does_not_limit_a_running_request(
    new_server: MakeServer, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    server = new_server(llm={"n_ctx": 8192, "n_seq_max": 1, "draft_tokens": 0}).ready()
    monkeypatch.setattr(connection, "IDLE_TIMEOUT", 0.05)
    body = json.dumps({"prompt": "a", "max_tokens": 1000, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with connected(server) as client:
        client.sendall(head.encode() + body + more)
        answer = b""
        while b'"usage"' not in answer:
            piece = client.recv(65536)
            assert piece
            answer += piece


def test_endless_headers_close_the_connection(server: Server) -> None:
    with connected(server) as client:
        client.sendall(GET)
        with pytest.raises(OSError):  # noqa: PT011 — the system chooses the error of a closed connection
            client.sendall(b"a: b\r\n" * 2**25)


def test_pymtp_serve_uses_the_protocol_with_limits(serve: Callable[..., Served]) -> None:
    few = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (512, r.getrlimit(r.RLIMIT_NOFILE)[1]))"
    served = serve(before=few).ready()
    soft, _ = resource.prlimit(served.worker(), resource.RLIMIT_NOFILE)
    assert soft > 512
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), LONG) as client:
        client.sendall(GET)
        with pytest.raises(OSError):  # noqa: PT011 — the system chooses the error of a closed connection
            client.sendall(b"a: b\r\n" * 2**25)


def test_connection_stays_open_after_a_refusal_without_reading_the_body(new_server: MakeServer) -> None:
    server = new_server(api_keys=("secret",)).ready()
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        for _ in range(2):
            refused = client.post("/v1/completions", json={"prompt": "a" * 2**22})
            assert refused.status_code == 401


def test_connection_is_closed_after_a_timeout_if_the_response_is_not_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WRITE_TIMEOUT", 0.2)
    # The response has a megabyte, more than the system buffers for a client
    request_body = {"prompt": "a", "n": 4, "max_tokens": 100, "ignore_eos": True, "logprobs": 100}
    body = json.dumps(request_body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    wait_until(lambda: not server.n_connections)
    before = server.llm.figures().finished
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head.encode() + body)
        wait_until(lambda: server.llm.figures().finished > before)
        wait_until(lambda: not server.n_connections)


def test_connection_beyond_the_limit_gets_a_503(new_server: MakeServer) -> None:
    server = new_server(max_connections=2).ready()
    wait_until(lambda: not server.n_connections)
    with connected(server), connected(server):
        wait_until(lambda: server.n_connections == 2)
        crowded = httpx.get(server.url + "/v1/models", timeout=LONG)
        assert (crowded.status_code, crowded.json()["error"]["code"]) == (503, "too_many_connections")
        assert int(crowded.headers["retry-after"]) >= 1
        assert crowded.headers["connection"] == "close"
    wait_until(lambda: not server.n_connections)
    assert httpx.get(server.url + "/v1/models", timeout=LONG).status_code == 200


def test_connections_far_beyond_the_limit_are_aborted(new_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "EXTRA_CONNECTIONS", 1)
    server = new_server(max_connections=1).ready()
    wait_until(lambda: not server.n_connections)
    with connected(server), connected(server):
        wait_until(lambda: server.n_connections == 2)
        with connected(server) as third:
            assert is_ended(third)


@pytest.mark.parametrize(
    ("limits", "most", "raised"),
    [
        ((1024, 2**20), http_server.MAX_CONNECTIONS, True),
        ((2**20, 2**20), http_server.MAX_CONNECTIONS, False),
        ((1024, resource.RLIM_INFINITY), http_server.MAX_CONNECTIONS, True),
        ((1024, 1024), 1024 - http_server.RESERVED_FILES, False),
        ((256, 256), 16, False),
    ],
)
def test_connection_limit_depends_on_the_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], most: int, raised: bool
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: became.append(values))
    assert http_server.max_connections() == most
    assert became == ([(most + http_server.RESERVED_FILES, limits[1])] if raised else [])


CHUNKED = (
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
)


def test_api_key_in_trailers_is_ignored(new_server: MakeServer) -> None:
    server = new_server(api_keys=("secret",)).ready()
    body = b'{"content": "a"}'
    with connected(server) as client:
        client.sendall(CHUNKED + b"\r\n%x\r\n%s\r\n0\r\nX-Api-Key: secret\r\n\r\n" % (len(body), body))
        assert b" 401 " in client.recv(65536).partition(b"\r\n")[0]


@pytest.mark.parametrize("more", [b"A: b\r\n" * 100, b"a" * 700], ids=["many", "one"])
def test_endless_trailers_close_the_connection(server: Server, more: bytes) -> None:
    with connected(server) as client:
        client.sendall(CHUNKED.replace(b"POST /tokenize", b"GET /health") + b"\r\n0\r\nA: b\r\nB: ")
        sent = 0
        with suppress(ConnectionError):
            while sent < 2**27:
                client.sendall(more)
                sent += len(more)
        assert sent < 2**27


def test_long_chunked_bodies_are_accepted(server: Server) -> None:
    body = json.dumps({"content": "a " * 200_000}).encode()
    parts = (body[i : i + 1000] for i in range(0, len(body), 1000))
    answer = httpx.post(f"{server.url}/tokenize", content=parts, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


@pytest.mark.parametrize("wrong", [b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", CHUNKED + b"\r\nno chunk\r\n"])
def test_connection_closes_after_an_invalid_request(
    server: Server, monkeypatch: pytest.MonkeyPatch, wrong: bytes
) -> None:
    monkeypatch.setattr(connection, "IDLE_TIMEOUT", 0.1)
    aborted: list[object] = []
    began = connection.HttpProtocol.connection_made

    def begin(self: connection.HttpProtocol, transport: Any) -> None:
        began(self, _Unsent(transport, aborted))  # type: ignore[arg-type]

    monkeypatch.setattr(connection.HttpProtocol, "connection_made", begin)
    with connected(server) as client:
        client.sendall(wrong)
        wait_until(lambda: bool(aborted))


class _Unsent:
    """A transport whose client reads nothing. close() would never end the connection, because data stays unsent."""

    def __init__(self, transport: Any, aborted: list[object]) -> None:
        self._transport, self._aborted, self._closing = transport, aborted, False

    def close(self) -> None:
        self._closing = True

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        self._aborted.append(self)
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
