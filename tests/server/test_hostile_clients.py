"""Tests of the server in hostile conditions: disconnects, slow readers, overload, failures, startup, shutdown."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from conftest import make_llm
from helpers.late import openai
from helpers.servers import LONG, Server, wait_until

from pymtp import LLM, ModelLoadError, NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.server.http import connection

CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "import "}]
SHORT: Any = {"model": "m", "messages": HELLO, "temperature": 0, "max_tokens": 8}
ENDLESS: Any = {"model": "m", "messages": HELLO, "temperature": 0, "max_tokens": 4000, "ignore_eos": True}


def post(server: Server, body: dict[str, Any], path: str = CHAT, receive_buffer: int | None = None) -> socket.socket:
    """Send a request, and return its socket without reading the response."""
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(LONG)
    client.connect(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    client.sendall("\r\n".join([*lines, "", ""]).encode() + data)
    return client


def read_until(client: socket.socket, text: bytes) -> bytes:
    """Read until the received data contain `text`, and return the data."""
    found = bytearray()
    while text not in found[-len(text) - 65536 :]:
        piece = client.recv(65536)
        assert piece, found
        found += piece
    return bytes(found)


def text_of(stream: bytes) -> str:
    """Decode a chunked response, and return the joined content of its stream."""
    body, at = bytearray(), stream.index(b"\r\n\r\n") + 4
    while at < len(stream):
        begin = stream.index(b"\r\n", at) + 2
        at = begin + int(stream[at:begin], 16) + 2
        body += stream[begin : at - 2]
    events = [json.loads(line[6:]) for line in bytes(body).split(b"\n") if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


@pytest.fixture
def slow(new_server: Callable[..., Server]) -> Server:
    """Return a server with one slot and no drafts, on which a request of 4,000 tokens runs for a while."""
    return new_server(llm={"n_ctx": 8192, "n_seq_max": 1, "draft_tokens": 0}).ready()


def running(server: Server) -> int:
    return server.llm.figures().running


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_client_disconnect_frees_the_slot(server: Server, path: str, stream: bool, n: int) -> None:
    before = server.llm.figures().cancelled
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": ["a", "b"]}
    client = post(server, ENDLESS | prompt | {"stream": stream, "n": n}, path)
    if stream:
        read_until(client, b'"finish_reason": null')
    else:
        wait_until(lambda: running(server))
    client.close()
    wait_until(server.free)
    wait_until(lambda: server.llm.figures().cancelled > before)


def test_client_disconnect_removes_a_waiting_request_from_the_queue(slow: Server) -> None:
    first = post(slow, ENDLESS | {"stream": True})
    read_until(first, b"data: ")
    second = post(slow, ENDLESS | {"stream": True})
    wait_until(lambda: slow.llm.figures().waiting == 1)
    second.close()
    wait_until(lambda: slow.llm.figures().waiting == 0 and slow.n_unfinished == 1)
    first.close()
    wait_until(slow.free)


def test_concurrent_figures_requests_wait_on_one_thread(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    between, go_on = server.llm._engine_thread.call, threading.Event()
    calls: list[object] = []

    def waits(call: Callable[[], Any]) -> Any:
        calls.append(call)
        assert go_on.wait(LONG)
        return between(call)

    monkeypatch.setattr(server.llm._engine_thread, "call", waits)
    pages = [socket.create_connection(("127.0.0.1", server.port), LONG) for _ in range(40)]
    for page in pages:
        page.sendall(b"GET /figures HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_until(lambda: calls)
    try:
        assert httpx.post(server.url + "/tokenize", json={"content": "a"}, timeout=5).status_code == 200
        assert len(calls) == 1
    finally:
        go_on.set()
    for page in pages:
        read_until(page, b'"memory":[{"device":')
        page.close()


def test_stalled_reader_does_not_delay_others(slow: Server) -> None:
    large = {"logprobs": True, "top_logprobs": 100}  # so that the response is larger than the buffers of the system
    lazy = post(slow, ENDLESS | {"max_tokens": 200, "stream": True} | large, receive_buffer=4096)
    wait_until(lambda: slow.n_unfinished == 1)
    other = httpx.post(slow.url + CHAT, json=SHORT, timeout=LONG)
    assert other.status_code == 200
    assert slow.n_unfinished == 1
    assert other.json()["choices"][0]["message"]["content"] == slow.llm.chat(HELLO, SamplingParams(8)).content
    lazy.close()
    wait_until(slow.free)


def test_stalled_reader_is_disconnected(slow: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_TIMEOUT", 0.2)
    lazy = post(slow, ENDLESS | {"stream": True, "logprobs": True, "top_logprobs": 100}, receive_buffer=4096)
    wait_until(lambda: slow.n_unfinished == 1)
    wait_until(slow.free)
    wait_until(lambda: not slow.n_connections)
    lazy.close()


def test_slow_reader_gets_the_whole_text(server: Server) -> None:
    before = server.llm.figures().finished
    large = {"logprobs": True, "top_logprobs": 100}  # so that the response is larger than the buffers of the system
    client = post(server, ENDLESS | {"max_tokens": 200, "stream": True} | large, receive_buffer=4096)
    wait_until(lambda: server.llm.figures().finished == before + 1)
    assert server.n_unfinished == 1
    whole = read_until(client, b"data: [DONE]")
    assert len(whole) > 1_000_000
    assert text_of(whole) == server.llm.chat(HELLO, SamplingParams(200, ignore_eos=True)).content
    client.close()


def test_request_to_a_full_queue_gets_a_429(new_server: Callable[..., Server]) -> None:
    server = new_server(max_queue=1, llm={"n_ctx": 8192, "n_seq_max": 1, "draft_tokens": 0}).ready()
    clients = [post(server, ENDLESS | {"stream": True}) for _ in range(2)]
    wait_until(lambda: server.n_unfinished == 2)
    for body in (SHORT, SHORT | {"stream": True}):
        full = httpx.post(server.url + CHAT, json=body, timeout=LONG)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        assert int(full.headers["retry-after"]) >= 1
    with pytest.raises(openai.RateLimitError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0).chat.completions.create(**SHORT)
    for each in clients:
        each.close()
    wait_until(server.free)
    assert httpx.post(server.url + CHAT, json=SHORT, timeout=LONG).status_code == 200


def test_max_queue_0_lets_only_completions_of_one_request_wait(new_server: Callable[..., Server]) -> None:
    server = new_server(max_queue=0, llm={"n_ctx": 8192, "n_seq_max": 1, "draft_tokens": 0}).ready()
    assert httpx.post(server.url + CHAT, json=SHORT | {"n": 3}, timeout=LONG).status_code == 200
    first = post(server, ENDLESS | {"stream": True})
    wait_until(lambda: server.n_unfinished == 1)
    assert httpx.post(server.url + CHAT, json=SHORT, timeout=LONG).status_code == 429
    first.close()
    wait_until(server.free)


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_of_one_request_may_exceed_the_queue_limit(new_server: Callable[..., Server], stream: bool) -> None:
    server = new_server(max_queue=1, llm={"n_seq_max": 2}).ready()
    body = {"prompt": [f"import {i}" for i in range(12)], "n": 2, "temperature": 0, "max_tokens": 4, "stream": stream}
    body["ignore_eos"] = True
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=LONG)
    assert answer.status_code == 200
    if not stream:
        expected = server.llm.generate(body["prompt"], SamplingParams(4, ignore_eos=True))
        texts = [choice["text"] for choice in answer.json()["choices"]]
        assert texts == [done.text for done in expected for _ in range(2)]
    else:
        assert answer.text.count('"finish_reason": "length"') == 24


@pytest.mark.parametrize("whose", ["the server's", "the client's"])
def test_request_timeout_ends_the_request_with_an_error(new_server: Callable[..., Server], whose: str) -> None:
    limit = 0.2
    server = new_server(
        request_timeout=limit if whose == "the server's" else 1000.0,
        llm={"n_ctx": 65536, "n_seq_max": 1, "draft_tokens": 0},
    ).ready()
    body = ENDLESS | {"max_tokens": 60_000} | ({} if whose == "the server's" else {"timeout": limit})
    whole = httpx.post(server.url + CHAT, json=body, timeout=LONG)
    assert (whole.status_code, whole.json()["error"]["type"]) == (504, "timeout_error")
    assert whole.headers["x-should-retry"] == "false"
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=LONG)
    with pytest.raises(openai.APIError, match="longer than"):  # noqa: PT012 — the iteration raises in the middle
        for chunk in client.chat.completions.create(model="m", messages=HELLO, stream=True, extra_body=body):
            assert chunk.choices
    wait_until(server.free)


def test_native_failure_fails_only_the_request_that_caused_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    other = post(server, ENDLESS | {"stream": True, "max_tokens": 600})
    begun = read_until(other, b"data: ")
    original, failures = Context.first_token, [NativeError("no way on")]

    def fails_once(self: Context, seq: int = 0) -> int:
        if failures:
            raise failures.pop()
        return original(self, seq)

    monkeypatch.setattr(Context, "first_token", fails_once)
    failed = httpx.post(server.url + CHAT, json=SHORT | {"stream": True}, timeout=LONG)
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
    assert failed.json()["error"]["message"] == "no way on"
    rest = begun + read_until(other, b"data: [DONE]")
    assert text_of(rest) == server.llm.chat(HELLO, SamplingParams(600, ignore_eos=True)).content


def test_stream_that_fails_ends_with_an_error_event(server: Server) -> None:
    client = post(server, ENDLESS | {"stream": True})
    read_until(client, b'"content": "')
    llm = server.llm
    llm._engine_thread.call(lambda: llm._engine.fail_all(NativeError("no way on")))
    last = read_until(client, b"0\r\n\r\n").rstrip().split(b"data: ")[-1]
    said = json.loads(last.split(b"\n")[0])
    assert said == {"error": {"message": "no way on", "type": "server_error", "param": None, "code": "native_failure"}}
    client.close()
    again = httpx.post(server.url + CHAT, json=SHORT, timeout=LONG)
    assert again.json()["choices"][0]["message"]["content"] == server.llm.chat(HELLO, SamplingParams(8)).content


def test_requests_get_a_503_while_the_model_is_loading(new_server: Callable[..., Server]) -> None:
    go_on = threading.Event()

    def load() -> LLM:
        assert go_on.wait(LONG)
        return make_llm(n_seq_max=2)

    server = new_server(load=load)
    wait_until(lambda: _answers(server))
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        health = client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        for path, body in ((CHAT, SHORT), ("/tokenize", {"content": "a"})):
            early = client.post(path, json=body)
            assert (early.status_code, early.json()["error"]["code"]) == (503, "unavailable")
            assert int(early.headers["retry-after"]) >= 1
        go_on.set()
        server.ready()
        assert client.get("/health").json() == {"status": "ok"}
        assert client.post(CHAT, json=SHORT).status_code == 200
        server.app.state.ending = True
        assert client.get("/health").json() == {"status": "ending"}
        assert client.post(CHAT, json=SHORT).status_code == 503


def _answers(server: Server) -> bool:
    with suppress(httpx.ConnectError):
        return bool(httpx.get(server.url + "/version", timeout=LONG).status_code)
    return False


def test_failed_model_load_is_passed_to_on_loaded(new_server: Callable[..., Server]) -> None:
    failed: list[Exception | None] = []

    def load() -> LLM:
        raise ModelLoadError("no such file")

    server = new_server(load=load, on_loaded=failed.append)
    wait_until(lambda: failed)
    assert isinstance(failed[0], ModelLoadError)
    assert httpx.get(server.url + "/health", timeout=LONG).status_code == 503


def test_cancelled_requests_end_with_an_error(new_server: Callable[..., Server]) -> None:
    server = new_server(llm={"n_ctx": 8192, "n_seq_max": 2, "draft_tokens": 0}).ready()
    streams = [post(server, ENDLESS | {"stream": True}) for _ in range(2)]
    for stream in streams:
        read_until(stream, b"data: ")
    server.llm.cancel()
    for stream in streams:
        last = read_until(stream, b'"error"')
        assert b'"code": "unavailable"' in last or b'"code"' in read_until(stream, b"}}")
        stream.close()
    wait_until(server.free)
