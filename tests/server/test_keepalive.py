"""Tests of keepalives, which streams send while there is no event."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.late import anthropic, openai
from helpers.servers import LONG, Server, wait_until
from starlette.types import Message

from pymtp import NativeError
from pymtp.server.http import sse
from pymtp.server.http.errors import stream_error_encoder
from pymtp.server.http.sse import KEEPALIVE, EventStream

HELLO: Any = [{"role": "user", "content": "import "}]
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.02)


def run_stream(events: Callable[[Callable[[int], Any]], AsyncIterator[bytes]], **named: Any) -> list[Message]:
    """Run a stream, and return the ASGI messages that the stream has sent.

    events: yields the events of the stream. Its argument is a function that waits until n messages were sent.
    """
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async def until(n: int) -> None:
        while len(sent) < n:
            await asyncio.sleep(0.001)

    stream = EventStream(events(until), stream_error_encoder("/v1/completions"), **named)
    asyncio.run(asyncio.wait_for(stream({"type": "http"}, receive, send), LONG))
    return sent


def bodies(sent: list[Message]) -> list[bytes]:
    assert sent[0]["type"] == "http.response.start"
    assert [message["type"] for message in sent[1:]] == ["http.response.body"] * (len(sent) - 1)
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
    return [message["body"] for message in sent[1:]]


def test_status_and_keepalives_are_sent_while_there_is_no_event() -> None:
    async def events(until: Callable[[int], Any]) -> AsyncIterator[bytes]:
        await until(4)
        yield b"one"
        await until(7)
        yield b"two"

    found = bodies(run_stream(events))
    assert found[:3] == [KEEPALIVE] * 3
    assert KEEPALIVE in found[found.index(b"one") : found.index(b"two")]
    assert [each for each in found if each != KEEPALIVE] == [b"one", b"two", b""]


def test_stream_that_the_shutdown_cancels_ends_with_an_error() -> None:
    async def events(until: Callable[[int], Any]) -> AsyncIterator[bytes]:
        (request,) = (task for task in asyncio.all_tasks() if "EventStream.__call__" in repr(task.get_coro()))
        await until(2)
        request.cancel()
        await asyncio.Event().wait()
        yield b"never"

    *_, error, end = bodies(run_stream(events))
    assert b"the server cancelled the request" in error
    assert end == b""


def test_no_keepalives_are_sent_between_frequent_events() -> None:
    async def events(until: Callable[[int], Any]) -> AsyncIterator[bytes]:
        for _ in range(100):
            await asyncio.sleep(0.001)
            yield b"one"

    sse.KEEPALIVE_SECONDS = LONG
    assert bodies(run_stream(events)) == [b"one"] * 100 + [b""]


def test_stream_failure_is_an_event_after_a_keepalive_and_an_exception_before() -> None:
    async def events(until: Callable[[int], Any]) -> AsyncIterator[bytes]:
        await until(expected_value)
        raise NativeError("no way on")
        yield b"never"

    expected_value = 2
    *_, last, end = bodies(run_stream(events))
    assert b"no way on" in last
    assert end == b""
    expected_value = 0
    with pytest.raises(NativeError):
        run_stream(events)


@contextmanager
def blocked_engine(server: Server) -> Iterator[Callable[[], None]]:
    """Block the engine until the returned function is called."""
    llm, go_on, holds = server.llm, threading.Event(), threading.Event()

    def hold() -> None:
        holds.set()
        assert go_on.wait(LONG)

    holder = threading.Thread(target=lambda: llm._engine_thread.call(hold))
    holder.start()
    assert holds.wait(LONG)
    try:
        yield go_on.set
    finally:
        go_on.set()
        holder.join()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record the data that streams send."""
    found: list[bytes] = []
    send = sse._ResponseBody.send

    async def noted(self: Any, data: bytes, *, more: bool = True) -> None:
        found.append(data)
        await send(self, data, more=more)

    monkeypatch.setattr(sse._ResponseBody, "send", noted)
    return found


def text_of_openai(server: Server) -> str:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=LONG, max_retries=0)
    stream = client.chat.completions.create(model="m", messages=HELLO, stream=True, temperature=0, max_tokens=8)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def text_of_openai_completions(server: Server) -> str:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=LONG, max_retries=0)
    stream = client.completions.create(model="m", prompt="import ", stream=True, temperature=0, max_tokens=8)
    return "".join(chunk.choices[0].text for chunk in stream)


def text_of_openai_responses(server: Server) -> str:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=LONG, max_retries=0)
    with client.responses.stream(model="m", input="import ", temperature=0, max_output_tokens=8) as stream:
        return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def text_of_anthropic(server: Server) -> str:
    client = anthropic.Anthropic(base_url=server.url, api_key="none", timeout=LONG, max_retries=0)
    with client.messages.stream(model="m", messages=HELLO, max_tokens=8, extra_body={"temperature": 0}) as stream:
        return "".join(stream.text_stream)


@pytest.mark.parametrize(
    ("client", "keepalive"),
    [
        (text_of_openai, KEEPALIVE),
        (text_of_openai_completions, KEEPALIVE),
        (text_of_openai_responses, KEEPALIVE),
        (text_of_anthropic, PING),
    ],
)
def test_official_clients_ignore_keepalives(
    server: Server, sent: list[bytes], client: Callable[[Server], str], keepalive: bytes
) -> None:
    expected = client(server)
    assert expected
    sent.clear()
    with ThreadPoolExecutor(1) as threads, blocked_engine(server) as go_on:
        text: Future[str] = threads.submit(client, server)
        wait_until(lambda: sent.count(keepalive) >= 3)
        go_on()
        assert text.result(LONG) == expected


def test_client_disconnect_ends_the_keepalives(server: Server, sent: list[bytes]) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=LONG, max_retries=0)
    with blocked_engine(server) as go_on:
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True, max_tokens=8)
        wait_until(lambda: sent.count(KEEPALIVE) >= 2)
        stream.close()
        wait_until(lambda: server.n_unfinished == 0)
        n = len(sent)
        go_on()
    wait_until(server.free)
    assert len(sent) == n
