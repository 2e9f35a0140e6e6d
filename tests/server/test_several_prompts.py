"""Claims about several prompts in one request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server, wait_until
from http_wire import Connection

from pymtp import SamplingParams
from pymtp.openai.generate_request import Ask
from pymtp.server.errors import OverdueError, QueueFullError
from pymtp.server.openai import completions
from pymtp.server.service import Service

MakeServer = Callable[..., Server]
URL = "/v1/completions"
LITTLE: Any = {"prompt": "a", "max_tokens": 1}


@pytest.fixture
def small(new_server: MakeServer) -> Server:
    """One place, and three texts may wait."""
    return new_server(max_queue=3, llm={"n_ctx": 8192, "n_seq_max": 1, "draft_tokens": 0}).ready()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("prompts", "n"), [(4, 1), (2, 2), (5, 1)])  # at most 4, or one request
def test_a_request_counts_with_all_of_its_texts(small: Server, stream: bool, prompts: int, n: int) -> None:
    def ask(body: Any) -> httpx.Response:
        return httpx.post(small.url + URL, json=body, timeout=LONG)

    async def play() -> None:
        client = await Connection("127.0.0.1", small.port).open()
        await client.send("POST", URL, json.dumps(endless).encode())
        await asyncio.to_thread(wait_until, lambda: small.n_open == prompts * n)
        assert small.llm.figures().running <= 1
        full = await asyncio.to_thread(ask, LITTLE)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        client.leave()
        await asyncio.to_thread(wait_until, small.free)
        assert (await asyncio.to_thread(ask, LITTLE)).status_code == 200

    endless = {"prompt": ["a"] * prompts, "n": n, "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    asyncio.run(play())


def test_a_request_with_more_prompts_than_may_wait_is_refused_before_it_begins(small: Server) -> None:
    async def play() -> None:
        first = await Connection("127.0.0.1", small.port).open()
        await first.send("POST", URL, json.dumps(LITTLE | {"max_tokens": 4000, "ignore_eos": True}).encode())
        await asyncio.to_thread(wait_until, lambda: small.n_open == 1)
        second = await Connection("127.0.0.1", small.port).open()
        for stream in (False, True):
            many = LITTLE | {"prompt": ["a"] * 4, "stream": stream}
            answer = await second.ask("POST", URL, json.dumps(many).encode())
            assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_full")
        for each in (first, second):
            each.leave()

    asyncio.run(play())
    wait_until(small.free)


def on_loop(server: Server, test: Callable[[Service], Any]) -> None:
    """Runs a test on the loop of the server."""
    service = server.app.state.service
    asyncio.run_coroutine_threadsafe(test(service), server.loop).result(LONG)


def test_the_later_prompts_of_a_request_have_their_places_while_others_fill_the_queue(small: Server) -> None:
    async def test(service: Service) -> None:
        ask = Ask("a", SamplingParams(1))
        with service.admit(2) as admission, service.admit(2):
            with pytest.raises(QueueFullError):
                await service.answer(ask).__aenter__()
            for left in (3, 2):
                async with service.answer(ask, admission) as answering:
                    assert len(await answering.whole()) == 1
                assert service.n_open == left
        assert service.n_open == 0

    on_loop(small, test)


def test_the_limit_of_time_is_that_of_the_request_and_not_of_each_prompt(small: Server) -> None:
    async def test(service: Service) -> None:
        with service.admit(2) as admission:
            admission.begun -= 1000
            async with service.answer(Ask("a", SamplingParams(1), timeout=2000), admission) as answering:
                assert await answering.whole()
            with pytest.raises(OverdueError):
                await service.answer(Ask("a", SamplingParams(1), timeout=900), admission).__aenter__()

    on_loop(small, test)


def test_what_prompts_share_is_read_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def counted(*given: Any) -> Ask:
        reads.append(given)
        return read(*given)

    read = completions.read_ask
    monkeypatch.setattr(completions, "read_ask", counted)
    asked = {"prompt": ["import ", "def main", "class A"], "max_tokens": 4, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=LONG).json()
    alone = [
        httpx.post(f"{server.url}/v1/completions", json=asked | {"prompt": each}).json() for each in asked["prompt"]
    ]
    assert [choice["text"] for choice in answer["choices"]] == [each["choices"][0]["text"] for each in alone]
    assert len(reads) == 1 + len(alone)
