"""Tests of clients that close their side of the connection: those that wait get their responses."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from typing import Any

import pytest
from helpers.servers import LONG, Server, wait_until

from pymtp.server.http import connection

TEXT = "/v1/completions"
ASKED: dict[str, Any] = {"prompt": "a", "temperature": 0, "max_tokens": 400, "ignore_eos": True}


def request_bytes(body: dict[str, Any], version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {TEXT} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def answers(server: Server, sent: bytes) -> bytes:
    """Send bytes, close the client's side, and return all that comes until the server closes its own."""
    with socket.create_connection(("127.0.0.1", server.port), LONG) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(2**16), b""))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_half_closed_client_gets_its_response_and_then_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch, stream: bool, version: str
) -> None:
    monkeypatch.setattr(server._server.config, "timeout_keep_alive", 2 * LONG)
    came = answers(server, request_bytes(ASKED | {"stream": stream, "max_tokens": 40}, version))
    assert came.startswith(b"HTTP/1.1 200 ")
    assert (b"[DONE]" if stream else b'"finish_reason":"length"') in came
    wait_until(lambda: server.n_connections == 0)


def test_half_closed_client_gets_the_responses_of_all_pipelined_requests(server: Server) -> None:
    came = answers(server, request_bytes(ASKED | {"max_tokens": 3}) * 3)
    assert came.count(b"HTTP/1.1 200 ") == 3


def test_probes_of_a_half_closed_client_are_no_part_of_its_response(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PROBE_SECONDS", 0.001)
    client = HTTPConnection("127.0.0.1", server.port, timeout=LONG)
    client.request("POST", TEXT, json.dumps(ASKED), {"Content-Type": "application/json"})
    client.sock.shutdown(socket.SHUT_WR)
    answer = client.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())["usage"]["completion_tokens"] == 400


def test_request_that_is_cut_off_ends_with_its_connection(server: Server) -> None:
    assert answers(server, request_bytes(ASKED)[:-1]) == b""


def test_system_probes_a_half_closed_connection(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), LONG) as client:
        client.sendall(request_bytes(ASKED | {"n": 4}, "1.0"))
        client.shutdown(socket.SHUT_WR)
        probed: list[int] = []

        def is_probed() -> bool:
            for one in list(server._server.server_state.connections):
                if getattr(one, "_is_half_closed", False):
                    inner = one.transport.get_extra_info("socket")
                    probed.append(inner.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            return bool(probed)

        wait_until(is_probed)
        assert probed[0]
