"""Tests of requests with several prompts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from helpers.http_wire import Connection
from helpers.servers import LONG, Server, wait_until

from pymtp import SamplingParams
from pymtp.openai.generate_request import GenerateRequest
from pymtp.server.errors import QueueFullError, RequestTimeoutError
from pymtp.server.openai import routes
from pymtp.server.service import Service

MakeServer = Callable[..., Server]
URL = "/v1/completions"
SMALL_REQUEST: Any = {"prompt": "a", "max_tokens": 1}


@pytest.fixture
def small(new_server: MakeServer) -> Server:
    """Return a server with one slot and a queue of three."""
    return new_server(max_queue=3, llm={"n_ctx": 8192, "n_seq_max": 1, "draft_tokens": 0}).ready()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("prompts", "n"), [(50, 1), (20, 3)])
def test_request_of_many_prompts_does_not_lock_others_out(small: Server, stream: bool, prompts: int, n: int) -> None:
    def ask(body: Any) -> httpx.Response:
        return httpx.post(small.url + URL, json=body, timeout=LONG)

    async def play() -> None:
        client = await Connection("127.0.0.1", small.port).open()
        await client.send("POST", URL, json.dumps(many).encode())
        await asyncio.to_thread(wait_until, lambda: small.n_unfinished == prompts * n)
        assert small.llm.figures().running <= 1
        assert (await asyncio.to_thread(ask, SMALL_REQUEST)).status_code == 200
        assert small.n_unfinished > 0
        client.leave()
        await asyncio.to_thread(wait_until, small.free)

    many = {"prompt": ["a"] * prompts, "n": n, "max_tokens": 300, "ignore_eos": True, "stream": stream}
    asyncio.run(play())


def test_request_with_more_completions_at_once_than_free_places_is_refused(small: Server) -> None:
    async def play() -> None:
        first = await Connection("127.0.0.1", small.port).open()
        await first.send("POST", URL, json.dumps(SMALL_REQUEST | {"max_tokens": 4000, "ignore_eos": True}).encode())
        await asyncio.to_thread(wait_until, lambda: small.n_unfinished == 1)
        second = await Connection("127.0.0.1", small.port).open()
        for stream in (False, True):
            many = SMALL_REQUEST | {"prompt": ["a"] * 2, "n": 4, "stream": stream}
            answer = await second.ask("POST", URL, json.dumps(many).encode())
            assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_full")
        for each in (first, second):
            each.leave()

    asyncio.run(play())
    wait_until(small.free)


def on_loop(server: Server, test: Callable[[Service], Any]) -> None:
    """Run a test on the event loop of the server. test: gets the service of the server."""
    service = server.app.state.service
    asyncio.run_coroutine_threadsafe(test(service), server.loop).result(LONG)


def test_later_prompts_of_a_request_stay_admitted_while_the_queue_is_full(small: Server) -> None:
    async def test(service: Service) -> None:
        ask = GenerateRequest("a", SamplingParams(1))
        with service.admit(2) as admission, service.admit(2):
            with pytest.raises(QueueFullError):
                await service.run_request(ask).__aenter__()
            for left in (3, 2):
                async with service.run_request(ask, admission) as running:
                    assert len(await running.outputs()) == 1
                assert service.n_unfinished == left
        assert service.n_unfinished == 0

    on_loop(small, test)


def test_timeout_runs_from_the_arrival_of_the_request(small: Server) -> None:
    async def test(service: Service) -> None:
        with service.admit(2) as admission:
            admission.arrival_time -= 1000
            async with service.run_request(GenerateRequest("a", SamplingParams(1), timeout=2000), admission) as running:
                assert await running.outputs()
            with pytest.raises(RequestTimeoutError):
                await service.run_request(GenerateRequest("a", SamplingParams(1), timeout=900), admission).__aenter__()

    on_loop(small, test)


def test_fields_of_a_request_with_several_prompts_are_read_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def counted(*given: Any) -> GenerateRequest:
        reads.append(given)
        return read(*given)

    read = routes.read_generate_request
    monkeypatch.setattr(routes, "read_generate_request", counted)
    request_body = {"prompt": ["import ", "def main", "class A"], "max_tokens": 4, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=request_body, timeout=LONG).json()
    alone = [
        httpx.post(f"{server.url}/v1/completions", json=request_body | {"prompt": each}).json()
        for each in request_body["prompt"]
    ]
    assert [choice["text"] for choice in answer["choices"]] == [each["choices"][0]["text"] for each in alone]
    assert len(reads) == 1 + len(alone)
