"""Claims about streams that have nothing to tell for a while: something is sent nevertheless."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from helpers.servers import LONG, Server, wait_until
from starlette.types import Message

from pymtp import NativeError
from pymtp.server.http import sse
from pymtp.server.http.errors import stream_failure
from pymtp.server.http.sse import WAITING, EventStream

HELLO: Any = [{"role": "user", "content": "import "}]
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "QUIET", 0.02)


def played(events: Callable[[Callable[[int], Any]], AsyncIterator[bytes]], **named: Any) -> list[Message]:
    """What is sent of a stream. events: is given what waits until so many messages were."""
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async def until(n: int) -> None:
        while len(sent) < n:
            await asyncio.sleep(0.001)

    stream = EventStream(events(until), stream_failure("/v1/completions"), **named)
    asyncio.run(asyncio.wait_for(stream({"type": "http"}, receive, send), LONG))
    return sent


def bodies(sent: list[Message]) -> list[bytes]:
    assert sent[0]["type"] == "http.response.start"
    assert [message["type"] for message in sent[1:]] == ["http.response.body"] * (len(sent) - 1)
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
    return [message["body"] for message in sent[1:]]


def test_the_status_and_comments_come_while_there_is_no_event() -> None:
    async def events(until: Callable[[int], Any]) -> AsyncIterator[bytes]:
        await until(4)
        yield b"one"
        await until(7)
        yield b"two"

    found = bodies(played(events))
    assert found[:3] == [WAITING] * 3
    assert WAITING in found[found.index(b"one") : found.index(b"two")]
    assert [each for each in found if each != WAITING] == [b"one", b"two", b""]


def test_nothing_is_sent_where_events_come() -> None:
    async def events(until: Callable[[int], Any]) -> AsyncIterator[bytes]:
        for _ in range(100):
            await asyncio.sleep(0.001)
            yield b"one"

    sse.QUIET = LONG
    assert bodies(played(events)) == [b"one"] * 100 + [b""]


def test_what_fails_after_a_comment_is_an_event_and_before_one_an_error() -> None:
    async def events(until: Callable[[int], Any]) -> AsyncIterator[bytes]:
        await until(wanted)
        raise NativeError("no way on")
        yield b"never"

    wanted = 2
    *_, last, end = bodies(played(events))
    assert b"no way on" in last
    assert end == b""
    wanted = 0
    with pytest.raises(NativeError):
        played(events)


@contextmanager
def held(server: Server) -> Iterator[Callable[[], None]]:
    """The engine does nothing until what this gives is called."""
    llm, go_on, holds = server.llm, threading.Event(), threading.Event()

    def hold() -> None:
        holds.set()
        assert go_on.wait(LONG)

    holder = threading.Thread(target=lambda: llm.turns.between(llm, hold))
    holder.start()
    assert holds.wait(LONG)
    try:
        yield go_on.set
    finally:
        go_on.set()
        holder.join()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What streams send."""
    found: list[bytes] = []
    send = sse._Body.send

    async def noted(self: Any, data: bytes, *, more: bool = True) -> None:
        found.append(data)
        await send(self, data, more=more)

    monkeypatch.setattr(sse._Body, "send", noted)
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
    ("client", "waiting"),
    [
        (text_of_openai, WAITING),
        (text_of_openai_completions, WAITING),
        (text_of_openai_responses, WAITING),
        (text_of_anthropic, PING),
    ],
)
def test_official_clients_pass_over_what_is_sent_meanwhile(
    server: Server, sent: list[bytes], client: Callable[[Server], str], waiting: bytes
) -> None:
    expected = client(server)
    assert expected
    sent.clear()
    with ThreadPoolExecutor(1) as threads, held(server) as go_on:
        text: Future[str] = threads.submit(client, server)
        wait_until(lambda: sent.count(waiting) >= 3)
        go_on()
        assert text.result(LONG) == expected


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(server: Server, sent: list[bytes]) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=LONG, max_retries=0)
    with held(server) as go_on:
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True, max_tokens=8)
        wait_until(lambda: sent.count(WAITING) >= 2)
        stream.close()
        wait_until(lambda: server.n_open == 0)
        n = len(sent)
        go_on()
    wait_until(server.free)
    assert len(sent) == n
