"""Tests of what all paths of the server that take images have in common: names of fields, URLs, memory, waits."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from helpers.image_requests import BASE64, BLOCK, CHAT, MESSAGES, RED, RESPONSES, TEXT, image, post, user
from helpers.picture_files import data_url, picture
from helpers.servers import LONG, Server, wait_until

from pymtp.server import service
from pymtp.server.errors import ClientDisconnectedError
from pymtp.server.http.sse import EventStream
from pymtp.server.images.reader import LIMITS
from pymtp.server.llama.write import NativeWriter


@pytest.fixture(scope="module")
def http(seeing_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=seeing_server.url, timeout=LONG) as client:
        yield client


@pytest.mark.parametrize("url", ["malformed", "http://a.example/a.png", data_url(b"\x89PNG\r\n\x1a\nx")])
def test_refused_image_is_named_by_its_field(http: httpx.Client, url: str) -> None:
    part, marked = image(url), {"prompt_string": "<__media__> <__media__>a", "multimodal_data": [BASE64, url]}
    system, content = {"role": "system", "content": "b"}, {"content": [TEXT, image(), image(url)]}
    sent = {"role": "user", "content": "a", "images": [BASE64, url]}
    block = {"type": "image", "source": {"type": "url", "url": url}}
    items = user({"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url})
    for name, path, body in (
        ("messages[1].content[1]", CHAT, {"messages": [system, *user(TEXT, part)]}),
        ("messages[0].content[2]", MESSAGES, {"model": "m", "system": "b", "messages": user(TEXT, TEXT, block)}),
        ("input[0].content[1]", RESPONSES, {"input": items, "instructions": "b"}),
        ("messages[1].images[1]", "/api/chat", {"messages": [system, sent]}),
        ("images[1]", "/api/generate", {"system": "b", "prompt": "a", "images": [BASE64, url]}),
        ("prompt.multimodal_data[1]", "/completion", {"prompt": marked}),
        ("prompt[1].multimodal_data[1]", "/completion", {"prompt": ["a", marked]}),
        ("content.multimodal_data[1]", "/embedding", {"content": marked}),
        ("input[1].content[2]", "/v1/embeddings", {"input": ["a", content]}),
    ):
        answer = http.post(path, json={"max_tokens": 1, **body})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error if isinstance(error, str) else error["message"]).startswith(f"{name}: ")


def test_completion_checks_its_options_before_it_reads_images(http: httpx.Client) -> None:
    marked = {"prompt_string": "<__media__>a", "multimodal_data": ["http://a.example/a.png"]}
    refused = {"post_sampling_probs": True, "n_probs": 1, "top_n_sigma": 1}
    answer = http.post("/completion", json={"prompt": marked, **refused})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith("post_sampling_probs cannot be combined with top_n_sigma")


def test_images_by_url_are_read_for_all_paths(http: httpx.Client) -> None:
    def vector(**body: Any) -> Any:
        (found,) = post(http, "/v1/embeddings", **body)["data"]
        return found["embedding"]

    url = "file://red.png"
    assert vector(input={"content": [image(url), TEXT]}) == vector(input={"content": [image(), TEXT]})
    marked = {"prompt_string": "<__media__> a", "multimodal_data": [BASE64]}
    by_url = marked | {"multimodal_data": [url]}
    assert vector(input=by_url) == vector(input=marked)
    told = [post(http, "/completion", prompt=one, n_predict=4, temperature=0) for one in (marked, by_url)]
    assert told[0]["content"] == told[1]["content"]
    body = {"prompt": [by_url, "a"], "n_predict": 4, "temperature": 0, "stream": True}
    events = [json.loads(line[6:]) for line in http.post("/completion", json=body).text.splitlines() if line]
    assert "".join(one["content"] for one in events if one["index"] == 0) == told[0]["content"]


def test_embedding_of_text_does_not_wait_for_one_with_an_image(
    http: httpx.Client, seeing_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seeing_server.llm._images is not None
    projector, begun, released = seeing_server.llm._images.projector, threading.Event(), threading.Event()
    advance = projector.advance

    def held(seconds: float) -> Any:
        begun.set()
        return advance(seconds) if released.wait(0.001) else None

    monkeypatch.setattr(projector, "advance", held)
    with ThreadPoolExecutor() as pool:
        content = {"content": [image(data_url(picture("yellow"))), TEXT]}
        seeing = pool.submit(post, http, "/v1/embeddings", input=content)
        assert begun.wait(LONG)
        try:
            assert post(http, "/v1/embeddings", input="a")["data"]
            assert not seeing.done()
        finally:
            released.set()
        assert seeing.result()["data"]


@pytest.mark.parametrize("leaves", [False, True])
def test_memory_of_an_image_is_reserved_during_a_stream(
    http: httpx.Client, seeing_server: Server, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    chunks, reserved = NativeWriter.chunks, list[int]()
    monkeypatch.setattr(NativeWriter, "chunks", lambda *given: reserved.append(budget(seeing_server)) or chunks(*given))
    body = {"prompt": {"prompt_string": "<__media__> a", "multimodal_data": ["file://red.png"]}, "stream": True}
    with http.stream("POST", "/completion", json=body | {"n_predict": 200, "ignore_eos": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines) if leaves else [*lines]
    assert all(reserved)
    assert reserved
    wait_until(lambda: budget(seeing_server) == 0)


def test_memory_of_an_image_is_released_if_no_event_is_asked_for(
    http: httpx.Client, seeing_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave(*_: object) -> None:
        raise ClientDisconnectedError

    monkeypatch.setattr(EventStream, "_send_all", leave)
    body = {"prompt": {"prompt_string": "<__media__> a", "multimodal_data": ["file://red.png"]}, "stream": True}
    assert http.post("/completion", json=body).status_code == 500
    wait_until(lambda: budget(seeing_server) == 0)


_BY_URL = {"type": "url", "url": "file://red.png"}
SEEING = [
    ("/completion", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["file://red.png"]}}),
    ("/embedding", {"content": {"prompt_string": "<__media__>a", "multimodal_data": ["file://red.png"]}}),
    ("/v1/embeddings", {"input": {"content": [image("file://red.png"), TEXT]}}),
    ("/apply-template", {"messages": user(image("file://red.png"))}),
    (f"{CHAT}/input_tokens", {"messages": user(image("file://red.png"))}),
    (f"{MESSAGES}/count_tokens", {"model": "m", "messages": user({"type": "image", "source": _BY_URL})}),
    (f"{RESPONSES}/input_tokens", {"input": user({"type": "input_image", "image_url": "file://red.png"})}),
]


@pytest.fixture
def reading(seeing_server: Server, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let no image be read to its end. The event is set when one is begun."""
    begun = threading.Event()

    async def hang(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(seeing_server.app.state.service._images, "_read_all", hang)
    return begun


@pytest.mark.parametrize(("path", "body"), SEEING)
def test_client_that_leaves_ends_the_reading_of_its_images(
    seeing_server: Server, reading: threading.Event, path: str, body: dict[str, Any]
) -> None:
    with closing(HTTPConnection("127.0.0.1", seeing_server.port)) as client:
        client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        assert reading.wait(LONG)
        assert budget(seeing_server) > 0
    wait_until(lambda: budget(seeing_server) == 0)


@pytest.mark.parametrize(("path", "body"), SEEING)
@pytest.mark.usefixtures("reading")
def test_reading_of_images_has_a_limit_on_its_time(
    http: httpx.Client, seeing_server: Server, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(service, "PREPARE_TIMEOUT", 0.01)
    assert http.post(path, json=body).status_code == 503
    assert budget(seeing_server) == 0


@pytest.mark.parametrize(("path", "body"), SEEING)
@pytest.mark.usefixtures("reading")
def test_reading_of_images_takes_a_place_in_the_queue(
    http: httpx.Client, seeing_server: Server, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(seeing_server.app.state.service, "settings", replace(seeing_server.settings, max_queue=0))
    n_seq_max = seeing_server.llm.context.n_seq_max
    with ExitStack() as stack:
        for i in range(n_seq_max):
            client = stack.enter_context(closing(HTTPConnection("127.0.0.1", seeing_server.port)))
            client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            wait_until(lambda n=i + 1: budget(seeing_server) == n * LIMITS.max_bytes)
        assert http.post(path, json=body).status_code == 429
        assert budget(seeing_server) == n_seq_max * LIMITS.max_bytes
    wait_until(seeing_server.free)


def budget(server: Server) -> int:
    found: int = server.app.state.service._images._budget.nbytes
    return found


@pytest.mark.parametrize("role", ["system", "developer"])
def test_images_of_system_messages_are_refused(http: httpx.Client, role: str) -> None:
    item = {"role": role, "content": [{"type": "input_image", "image_url": data_url(RED)}]}
    for path, body in (
        (CHAT, {"messages": [{"role": role, "content": [image()]}, *user(TEXT)]}),
        (MESSAGES, {"model": "m", "messages": [*user(TEXT), {"role": role, "content": [BLOCK]}]}),
        (RESPONSES, {"input": [item, *user({"type": "input_text", "text": "a"})]}),
        ("/api/chat", {"messages": [{"role": role, "content": "a", "images": [BASE64]}, {"role": "user"}]}),
    ):
        answer = http.post(path, json={"max_tokens": 1, **body})
        assert answer.status_code == 400
        error = answer.json()["error"]
        words = "must be 'text', not 'image'" if path == MESSAGES else "of a user"
        assert words in (error if isinstance(error, str) else error["message"]).replace("of users", "of a user")


def test_image_in_an_answer_is_a_placeholder_in_all_apis(http: httpx.Client) -> None:
    told = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    parts = [image(), {"type": "text", "text": "b"}]
    chat = [told[0], {"role": "assistant", "content": parts}, told[2]]
    sent = [told[0], told[1] | {"images": [BASE64]}, told[2]]
    n = post(http, f"{CHAT}/input_tokens", messages=chat)["input_tokens"]
    assert "[image]b" in post(http, "/apply-template", messages=chat)["prompt"]
    answer = post(http, "/api/chat", messages=sent, stream=False, options={"num_predict": 1})
    assert answer["prompt_eval_count"] == n
