"""Tests of the check of the Host header: hosts that are not allowed are refused, against DNS rebinding."""

from __future__ import annotations

import socket
from collections.abc import Callable

import httpx
import pytest
from helpers.served import Served
from helpers.servers import LONG, Server
from typer.testing import CliRunner

from pymtp.cli.app import app
from pymtp.server.process.worker_config import WorkerConfig

MakeServer = Callable[..., Server]
KNOWN = ["localhost", "LOCALHOST:1", "localhost.", "chat.localhost:80", "127.0.0.1", "192.0.2.7:8080", "[::1]:8080", ""]
STRANGE = ["page.example", "page.example:8080", "localhost.page.example", "127.0.0.1.page.example", "notlocalhost"]
STRANGE += ["127.1", "[page.example]", "a@localhost", "localhost/", "local host", "::1"]


def ask(server: Server | Served, host: str, path: str = "/v1/models") -> httpx.Response:
    return httpx.get(server.url + path, headers={"Host": host}, timeout=LONG)


@pytest.mark.parametrize("host", KNOWN)
def test_ip_addresses_and_localhost_are_allowed(server: Server, host: str) -> None:
    assert ask(server, host).status_code == 200


@pytest.mark.parametrize("host", STRANGE)
@pytest.mark.parametrize("path", ["/v1/models", "/", "/health", "/v1/messages"])
def test_hosts_that_are_not_allowed_are_refused_on_all_paths(server: Server, host: str, path: str) -> None:
    refused = ask(server, host, path)
    assert refused.status_code == 403
    error = refused.json()["error"]
    assert "--allowed-host" in error["message"]
    assert error["type"] == "permission_error"


def test_two_host_headers_must_both_be_allowed(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), LONG) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: page.example\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 403 ")


def test_allowed_hosts_and_the_host_setting_are_allowed(new_server: MakeServer) -> None:
    server = new_server(host="my-machine", allowed_hosts=("Chat.example.org",)).ready()
    for host in ("chat.example.org:8080", "CHAT.example.org.", "my-machine:8080", "localhost"):
        assert ask(server, host).status_code == 200
    assert ask(server, "www.chat.example.org").status_code == 403


def test_allowed_host_star_allows_any_host(new_server: MakeServer) -> None:
    assert ask(new_server(allowed_hosts=("*",)).ready(), "page.example").status_code == 200


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ([], ()),
        (["--host", "localhost"], ()),
        (["--allowed-host", "a.example", "--allowed-host", "b.example"], ("a.example", "b.example")),
        (["--api-key", "secret"], ("*",)),
        (["--api-key", "secret", "--allowed-host", "a.example"], ("a.example",)),
        (["--host", "0.0.0.0"], ("*",)),
        (["--host", "0.0.0.0", "--allowed-host", "a.example"], ("a.example",)),
    ],
)
def test_serve_checks_hosts_on_local_addresses_without_a_key(
    monkeypatch: pytest.MonkeyPatch, options: list[str], allowed: tuple[str, ...]
) -> None:
    launched: list[WorkerConfig] = []
    monkeypatch.setattr(
        "pymtp.server.metrics.logs.configure", lambda *_: None
    )  # CliRunner's stderr is closed behind it
    monkeypatch.setattr(
        "pymtp.cli.serve.supervise", lambda listeners, launch: listeners[0].close() or launched.append(launch)
    )
    CliRunner().invoke(app, ["serve", "--port", "0", *options], catch_exceptions=False)
    assert [launch.settings.allowed_hosts for launch in launched] == [allowed]


def test_worker_gets_the_allowed_hosts(serve: Callable[..., Served]) -> None:
    served = serve("--allowed-host", "page.example").ready()
    assert ask(served, "page.example", "/health").status_code == 200
    assert ask(served, "other.example", "/health").status_code == 403
