"""Tests of images by URL: they come from the hosts that the operator names, and from nowhere else."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

import pytest

from pymtp.errors import InvalidRequestError
from pymtp.server.images import fetch
from pymtp.server.images.fetch import ImageFetcher, _is_public

Answer = Callable[[BaseHTTPRequestHandler], None]


class ImageHost:
    """A server on this machine that answers each path by a function. hosts: the Host headers that it got."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.hosts: list[str | None] = []
        made = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                made.hosts.append(self.headers["host"])
                made.answers[self.path](self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def fetch(self, path: str, *, host: str = "127.0.0.1", allowed: str | None = None, limit: int = 100) -> bytes:
        fetcher = ImageFetcher([f"{host}:{self.port}" if allowed is None else allowed])
        return asyncio.run(fetcher.fetch(f"http://{host}:{self.port}{path}", limit))


@pytest.fixture
def host() -> Iterator[ImageHost]:
    made = ImageHost()
    yield made
    made.server.shutdown()
    made.server.server_close()


def sends(data: bytes = b"", status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_image_of_a_named_host_is_fetched(host: ImageHost, name: str) -> None:
    host.answers["/a%20b.png?c=d"] = sends(b"image")
    assert host.fetch("/a b.png?c=d#e", host=name) == b"image"
    assert host.hosts == [f"{name}:{host.port}"]


@pytest.mark.parametrize(
    ("allowed", "url", "message"),
    [
        ((), "http://a.example/", "start the server with --allow-image-urls"),
        (("a.example",), "http://b.example/", "does not name 'b.example'"),
        (("a.example",), "http://a.example.evil/", "does not name 'a.example.evil'"),
        (("a.example",), "http://a.example:81/", "does not name 'a.example:81'"),
        (("a.example:81",), "http://a.example/", "does not name 'a.example'"),
        (("*",), "http://8.8.8.8:81/", "does not name '8.8.8.8:81'"),
        (("*",), "http://127.0.0.1/", "in a private network"),
        (("*",), "http://[::1]/", "in a private network"),
        (("*",), "http://2130706433/", "in a private network"),
        (("*",), "http://localhost/", "in a private network"),
        (("a.example",), "http://u:p@a.example/", "no user name"),
        (("a.example",), "ftp://a.example/", "an http or https URL"),
        (("a.example",), "http:///a", "an http or https URL"),
        (("a.example",), "http://a.example\x00/", "no valid URL"),
    ],
)
def test_other_urls_are_refused(allowed: tuple[str, ...], url: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as failure:
        asyncio.run(ImageFetcher(allowed).fetch(url, 100))
    assert "u:p" not in str(failure.value)


def test_name_that_leads_into_a_private_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("8.8.8.8", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(InvalidRequestError, match="in a private network"):
        asyncio.run(ImageFetcher(["a.example"]).fetch("http://a.example/", 100))


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        *[(public, True) for public in ("8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8")],
        *[(private, False) for private in ("127.0.0.1", "10.1.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0")],
        *[(private, False) for private in ("224.0.0.1", "::1", "::", "fe80::1", "fd00::1", "::127.0.0.1")],
        *[(private, False) for private in ("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001::1")],
    ],
)
def test_addresses_of_this_machine_and_of_private_networks_are_not_public(address: str, is_public: bool) -> None:
    assert _is_public(ip_address(address)) == is_public


@pytest.mark.parametrize(
    ("allowed", "url"),
    [("example.com:443", "https://example.com/a"), ("example.com:80", "http://example.com:80/a")],
)
def test_usual_port_may_be_named(allowed: str, url: str) -> None:
    assert ImageFetcher([allowed])._target(url).is_named
    with pytest.raises(InvalidRequestError, match="does not name"):
        ImageFetcher([allowed])._target("http://example.com:8080/a")


def test_redirections_are_followed_to_named_hosts_only(host: ImageHost) -> None:
    host.answers["/a"] = sends(status=302, Location="/b")
    host.answers["/b"] = sends(status=307, Location=f"http://127.0.0.1:{host.port}/c")
    host.answers["/c"] = sends(b"image")
    assert host.fetch("/a") == b"image"
    assert host.hosts == [f"127.0.0.1:{host.port}"] * 3
    host.answers["/d"] = sends(status=302, Location=f"http://localhost:{host.port}/c")
    with pytest.raises(InvalidRequestError, match="does not name 'localhost"):
        host.fetch("/d")
    host.answers["/e"] = sends(status=302, Location="/e")
    with pytest.raises(InvalidRequestError, match="redirected more than 3 times"):
        host.fetch("/e")
    host.answers["/f"] = sends(status=302, Location="file:///etc/passwd")
    with pytest.raises(InvalidRequestError, match="an http or https URL"):
        host.fetch("/f")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (sends(b"x" * 101), "more than 100 bytes"),
        (sends(status=404), "status 404"),
        (sends(b"x", Content_Encoding="gzip"), "compresses it"),
        (lambda handler: handler.wfile.write(b"HTTP/1.1 200"), "cannot be fetched"),
    ],
)
def test_answers_without_an_image_are_refused(host: ImageHost, answer: Answer, message: str) -> None:
    host.answers["/a"] = answer
    with pytest.raises(InvalidRequestError, match=message):
        host.fetch("/a")


def test_host_that_does_not_answer_is_refused(host: ImageHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "SECONDS", 0.05)
    gate = threading.Event()
    host.answers["/a"] = lambda _: gate.wait(30) and None
    with pytest.raises(InvalidRequestError, match=r"has not come within 0.05 seconds"):
        host.fetch("/a")
    gate.set()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    monkeypatch.setattr(fetch, "SECONDS", 10.0)
    with pytest.raises(InvalidRequestError, match="cannot be fetched"):
        asyncio.run(ImageFetcher([url[7:-1]]).fetch(url, 100))
