"""Claims about connections: silent ones, endless ones, too many of them."""

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
    """Whether the server ends the connection, with whatever it still says."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("said", [b"", b"\r\n", GET, GET + b"\r\n", GET + b"\r\n" + GET])
def test_a_connection_without_a_request_ends_after_a_while(
    server: Server, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connection, "IDLE", 0.1)
    with connected(server) as client:
        client.sendall(said)
        assert is_ended(client)


def test_a_connection_whose_headers_come_byte_by_byte_ends_after_a_while(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "IDLE", 0.1)
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
def test_an_answer_may_take_longer_than_a_connection_may_be_silent(
    new_server: MakeServer, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    server = new_server(llm={"n_ctx": 8192, "n_seq_max": 1, "draft_tokens": 0}).ready()
    monkeypatch.setattr(connection, "IDLE", 0.05)
    body = json.dumps({"prompt": "a", "max_tokens": 1000, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with connected(server) as client:
        client.sendall(head.encode() + body + more)
        answer = b""
        while b'"usage"' not in answer:
            piece = client.recv(65536)
            assert piece
            answer += piece


def test_headers_without_end_are_not_kept(server: Server) -> None:
    with connected(server) as client:
        client.sendall(GET)
        with pytest.raises(OSError):  # noqa: PT011 — whichever the system says of a connection that is gone
            client.sendall(b"a: b\r\n" * 2**25)


def test_connections_are_so_limited_where_the_command_serves(serve: Callable[..., Served]) -> None:
    few = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (512, r.getrlimit(r.RLIMIT_NOFILE)[1]))"
    served = serve(before=few).ready()
    soft, _ = resource.prlimit(served.worker(), resource.RLIMIT_NOFILE)
    assert soft > 512
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), LONG) as client:
        client.sendall(GET)
        with pytest.raises(OSError):  # noqa: PT011 — as above
            client.sendall(b"a: b\r\n" * 2**25)


def test_a_body_that_nobody_reads_does_not_end_its_connection(new_server: MakeServer) -> None:
    server = new_server(api_keys=("secret",)).ready()
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        for _ in range(2):
            refused = client.post("/v1/completions", json={"prompt": "a" * 2**22})
            assert refused.status_code == 401


def test_a_whole_answer_that_nobody_takes_is_let_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLOWEST", 0.2)
    # 10 MB: more than the system keeps for a client (4 MiB, net.ipv4.tcp_wmem)
    asked = {"prompt": "a", "n": 4, "max_tokens": 1000, "ignore_eos": True, "logprobs": 100}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    wait_until(lambda: not server.n_connections)
    before = server.llm.figures().finished
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head.encode() + body)
        wait_until(lambda: server.llm.figures().finished > before)
        wait_until(lambda: not server.n_connections)


def test_one_connection_too_many_is_told_to_come_again(new_server: MakeServer) -> None:
    server = new_server(most_connections=2).ready()
    wait_until(lambda: not server.n_connections)
    with connected(server), connected(server):
        wait_until(lambda: server.n_connections == 2)
        crowded = httpx.get(server.url + "/v1/models", timeout=LONG)
        assert (crowded.status_code, crowded.json()["error"]["code"]) == (503, "too_many_connections")
        assert int(crowded.headers["retry-after"]) >= 1
        assert crowded.headers["connection"] == "close"
    wait_until(lambda: not server.n_connections)
    assert httpx.get(server.url + "/v1/models", timeout=LONG).status_code == 200


def test_of_far_too_many_connections_the_newest_end_at_once(
    new_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MORE", 1)
    server = new_server(most_connections=1).ready()
    wait_until(lambda: not server.n_connections)
    with connected(server), connected(server):
        wait_until(lambda: server.n_connections == 2)
        with connected(server) as third:
            assert is_ended(third)


@pytest.mark.parametrize(
    ("limits", "most", "raised"),
    [
        ((1024, 2**20), http_server.MOST_CONNECTIONS, True),
        ((2**20, 2**20), http_server.MOST_CONNECTIONS, False),
        ((1024, resource.RLIM_INFINITY), http_server.MOST_CONNECTIONS, True),
        ((1024, 1024), 1024 - http_server.OTHER_FILES, False),
        ((256, 256), 16, False),
    ],
)
def test_there_may_be_as_many_connections_as_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], most: int, raised: bool
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: became.append(values))
    assert http_server.most_connections() == most
    assert became == ([(most + http_server.OTHER_FILES, limits[1])] if raised else [])


CHUNKED = (
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
)


def test_a_key_among_trailers_is_none(new_server: MakeServer) -> None:
    server = new_server(api_keys=("secret",)).ready()
    body = b'{"content": "a"}'
    with connected(server) as client:
        client.sendall(CHUNKED + b"\r\n%x\r\n%s\r\n0\r\nX-Api-Key: secret\r\n\r\n" % (len(body), body))
        assert b" 401 " in client.recv(65536).partition(b"\r\n")[0]


@pytest.mark.parametrize("more", [b"A: b\r\n" * 100, b"a" * 700], ids=["many", "one"])
def test_trailers_without_end_end_the_connection(server: Server, more: bytes) -> None:
    with connected(server) as client:
        client.sendall(CHUNKED.replace(b"POST /tokenize", b"GET /health") + b"\r\n0\r\nA: b\r\nB: ")
        sent = 0
        with suppress(ConnectionError):
            while sent < 2**27:
                client.sendall(more)
                sent += len(more)
        assert sent < 2**27


def test_bodies_in_chunks_are_taken_however_long_they_are(server: Server) -> None:
    body = json.dumps({"content": "a " * 200_000}).encode()
    parts = (body[i : i + 1000] for i in range(0, len(body), 1000))
    answer = httpx.post(f"{server.url}/tokenize", content=parts, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


@pytest.mark.parametrize("wrong", [b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", CHUNKED + b"\r\nno chunk\r\n"])
def test_a_connection_that_was_told_that_its_request_is_none_ends(
    server: Server, monkeypatch: pytest.MonkeyPatch, wrong: bytes
) -> None:
    monkeypatch.setattr(connection, "IDLE", 0.1)
    aborted: list[object] = []
    began = connection.Connection.connection_made

    def begin(self: connection.Connection, transport: Any) -> None:
        began(self, _Unsent(transport, aborted))  # type: ignore[arg-type]

    monkeypatch.setattr(connection.Connection, "connection_made", begin)
    with connected(server) as client:
        client.sendall(wrong)
        wait_until(lambda: bool(aborted))


class _Unsent:
    """A transport whose client takes nothing: to close it waits for that."""

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
