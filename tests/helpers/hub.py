"""A fake hub on loopback for huggingface_hub's real client, with faults on request and a record of its responses."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from makers.gguf_parts import GGUF, STRING, Key, TensorInfo

COMMIT = "0123456789abcdef0123456789abcdef01234567"
UINT32 = 4
LARGE = 10  # bytes; the etag of larger files is their SHA-256, as in Git LFS


TRUNK = ["blk.0.attn_norm.weight", "blk.3.attn_norm.weight", "output_norm.weight", "token_embd.weight"]
HEAD = ["blk.4.attn_norm.weight", "blk.4.nextn.eh_proj.weight"]
HEAD_ALONE = [*HEAD, "output.weight", "output_norm.weight", "token_embd.weight"]


def gguf(
    *,
    head: bool = True,
    architecture: str = "qwen35",
    late: bool = False,
    weights: int = 400_000,
    tensors: Sequence[str] | None = None,
    kind: str = "model",
    width: int = 32,
    n_tokens: int = 8_000,
    keys: Sequence[Key] = (),
) -> bytes:
    """Return a GGUF file with a header and `weights` bytes of fake weights.

    head: announce a head by its key, and by its tensors where none are given. late: the key of the head comes last.
    tensors: all names, such as HEAD_ALONE. kind: general.type.
    """
    tokens = Key(b"tokenizer.ggml.tokens", STRING, [b"token %d" % i for i in range(n_tokens)], is_array=True)
    kinds = Key(b"tokenizer.ggml.token_type", UINT32, [bytes(4)] * n_tokens, is_array=True)
    mark = number(f"{architecture}.nextn_predict_layers", 1)
    about = [
        Key(b"general.architecture", STRING, [architecture.encode()]),
        Key(b"general.type", STRING, [kind.encode()]),
    ]
    about += [number(f"{architecture}.block_count", 4 + head), number(f"{architecture}.embedding_length", width), *keys]
    about += [mark] * (head and not late) + [tokens, kinds] + [mark] * (head and late)
    names = TRUNK + HEAD * head if tensors is None else tensors
    infos = [TensorInfo(name.encode(), [8], 0, bytes(32)) for name in names]
    return GGUF(about, infos).encoded() + bytes(i * 7919 % 251 for i in range(1000)) * (weights // 1000)


def number(name: str, value: int) -> Key:
    return Key(name.encode(), UINT32, [value.to_bytes(4, "little")])


@dataclass
class Faults:
    """Faults of the hub. The first five affect responses to the end of a file: downloads, not reads of its header."""

    cut_after: int | None = None  # bytes of a response's body, after which the connection is closed
    cuts: int = 1_000_000  # the number of responses that are cut
    busy: int = 0  # the number of responses with status 503
    hang: bool = False  # a cut response hangs instead of closing
    busy_after_cuts: bool = False  # answer 503 after the last cut
    down: bool = False  # answer 503 to all requests
    no_ranges: bool = False
    last_byte_changed: bool = False
    listed_size: int | None = None  # a wrong size of all files in the list


@dataclass
class Sent:
    """A response with bytes of a file."""

    path: str
    first: int
    n: int
    asked_to: int  # the end of the requested range
    token: str | None


@dataclass
class Hub:
    """The repository owner/name, and how it behaves."""

    files: dict[str, bytes]
    faults: Faults = field(default_factory=Faults)
    gated: bool = False  # 403 with a wrong token, 401 without one
    token: str | None = None  # the required token, if any
    commit: str = COMMIT
    sent: list[Sent] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # all requests, as "GET /path"
    url: str = ""
    hangs: threading.Event = field(default_factory=threading.Event)  # set when a response hangs
    released: threading.Event = field(default_factory=threading.Event)  # ends all hanging responses

    def etag(self, path: str) -> str:
        data = self.files[path]
        if len(data) > LARGE:
            return sha256(data).hexdigest()
        return sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def listing(self) -> dict[str, object]:
        siblings = []
        for path, data in self.files.items():
            size = len(data) if self.faults.listed_size is None else self.faults.listed_size
            entry: dict[str, object] = {
                "rfilename": path,
                "size": size,
                "blobId": self.etag(path) if len(data) <= LARGE else sha1(data).hexdigest(),
            }
            if len(data) > LARGE:
                entry["lfs"] = {"size": size, "sha256": self.etag(path), "pointerSize": 134}
            siblings.append(entry)
        return {"id": "owner/name", "modelId": "owner/name", "sha": self.commit, "siblings": siblings}

    def bytes_sent(self) -> int:
        return sum(answer.n for answer in self.sent)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refused(self) -> bool:
        given = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        if self.hub.token is None or given == self.hub.token:
            return False
        if self.hub.gated:
            self.answer(403 if given else 401, X_Error_Code="GatedRepo", X_Error_Message="restricted")
        elif given:
            self.answer(401, X_Error_Message="Invalid credentials in Authorization header")
        else:
            self.answer(401, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        return True

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        if self.hub.faults.down:
            self.answer(503)
        elif found := re.fullmatch(r"/api/models/owner/name/revision/(.+)", path):
            if found[1] not in ("main", "v2", self.hub.commit):
                self.answer(404, X_Error_Code="RevisionNotFound")
            # the real hub lists files of gated repositories to everybody
            elif self.hub.gated or not self.refused():
                self.answer(200, json.dumps(self.hub.listing()).encode(), Content_Type="application/json")
        elif found := re.fullmatch(r"/owner/name/resolve/([^/]+)/(.+)", path):
            if not self.refused():
                self.send_file(found[2])
        else:
            self.answer(404, X_Error_Code="RepoNotFound")

    def send_file(self, path: str) -> None:
        hub, faults = self.hub, self.hub.faults
        if path not in hub.files:
            self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=hub.commit)
            return
        data = hub.files[path]
        about = {"ETag": f'"{hub.etag(path)}"', "X_Repo_Commit": hub.commit, "X_Linked_Size": str(len(data))}
        if self.command == "HEAD":
            self.answer(200, Content_Length=str(len(data)), **about)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        first, status = 0, 200
        if faults.last_byte_changed:
            data = data[:-1] + bytes([data[-1] ^ 1])
        body = data
        if asked and not faults.no_ranges:
            first, status = int(asked[1]), 206
            body = data[first : int(asked[2]) + 1 if asked[2] else None]
            about["Content_Range"] = f"bytes {first}-{first + len(body) - 1}/{len(data)}"
        to_end = first + len(body) == len(data)
        if to_end and faults.busy:
            faults.busy -= 1
            self.answer(503)
            return
        asked_bytes = len(body)
        cut = to_end and faults.cut_after is not None and faults.cuts > 0 and len(body) > faults.cut_after
        about["Content_Length"] = str(len(body))
        if cut:
            faults.cuts -= 1
            faults.busy = 100 if faults.busy_after_cuts and not faults.cuts else faults.busy
            body = body[: faults.cut_after]
            self.close_connection = True
        hub.sent.append(Sent(path, first, len(body), first + asked_bytes, self.headers["Authorization"]))
        self.answer(status, body, **about)
        if cut and faults.hang:
            hub.hangs.set()
            hub.released.wait()


class _HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore clients that close a download early."""


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Hub]:
    """Serve a hub with these files in owner/name, at a free port of loopback."""
    hub = Hub(files)
    server = _HubServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
