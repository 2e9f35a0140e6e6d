"""Tests of tools/bench/bench_images.py: every image is new, and a failed request is no time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import bench_images
import pytest
from bench_images import CHAT, Address, image_request, measure, png

from pymtp import InvalidRequestError
from pymtp.images import Image

Start = Callable[[], AbstractContextManager[Address]]
SEEN: list[Any] = []  # the requests that the server got


def test_images_of_a_bench_have_the_size_and_all_differ() -> None:
    images = [Image.read(png((64, 48), seed)) for seed in range(5)]
    assert {(image.width, image.height) for image in images} == {(64, 48)}
    assert len({image.digest for image in images}) == 5
    (message,) = image_request((64, 48), 3)["messages"]
    assert Image.from_data_url(message["content"][1]["image_url"]["url"]) == images[3]


@pytest.fixture
def server() -> Iterator[Callable[[int], Start]]:
    """Return a function that starts a server, which answers with a status."""
    servers: list[HTTPServer] = []
    SEEN.clear()

    def start(status: int) -> Start:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # the connection is closed as the client asks

            def do_POST(self) -> None:
                seen = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                SEEN.append(seen)
                content = json.dumps({"usage": {"prompt_tokens": len(seen["messages"])}}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def version_string(self) -> str:
                return "test"

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing."""

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()

        @contextmanager
        def started() -> Iterator[Address]:
            yield "127.0.0.1", servers[-1].server_port

        return started

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


def test_measurement_counts_the_tokens_and_takes_no_failed_request(
    server: Callable[[int], Start],
) -> None:
    requests = [{"messages": [1, 2, 3]} for _ in range(bench_images.REQUESTS + 1)]
    measured = measure(server(200), CHAT, requests)
    assert measured.tokens == 3
    assert 0 < measured.seconds < 60
    with pytest.raises(InvalidRequestError, match=r"a request failed: HTTP/1\.1 400"):
        measure(server(400), CHAT, requests)


def test_another_client_sends_images_beside_a_measurement(server: Callable[[int], Start]) -> None:
    measure(server(200), CHAT, [{"messages": [1]}] * 4, beside=(64, 48))
    images = [str(one) for one in SEEN if one["messages"] != [1]]
    assert images
    assert all("image_url" in image for image in images)
    assert len(set(images)) == len(images)
    assert len(SEEN) - len(images) == 4
