"""Tests of the limits on the preparation of a request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp import InvalidRequestError, SamplingParams
from pymtp.openai.generate_request import GenerateRequest
from pymtp.server import service
from pymtp.server.errors import RequestTimeoutError, UnavailableError
from pymtp.server.http import json_response
from pymtp.server.http.waited import WAITED_HEADER, WaitedMiddleware
from pymtp.server.llama import routes as llama_routes
from pymtp.server.openai import routes
from pymtp.server.settings import ServerSettings


def service_without_model() -> service.Service:
    """Return a service without a model."""
    context = SimpleNamespace(n_seq_max=1, n_ctx=32768)
    llm: Any = SimpleNamespace(
        llm=SimpleNamespace(context=context, model=SimpleNamespace(path=Path("m"))),
        _prepare=asyncio.to_thread,
        _open=lambda prepare, **_: asyncio.to_thread(prepare),
    )
    metrics: Any = SimpleNamespace(start_request=lambda prompt: None, register_engine=lambda llm, name: None)
    return service.Service(llm, ServerSettings(), metrics)


def test_request_timeout_covers_the_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(service, "prepare_request", lambda llm, ask: go_on.wait(60))

    async def test() -> None:
        server = service_without_model()
        ask = GenerateRequest("a", SamplingParams(), timeout=0.05)
        try:
            with pytest.raises(RequestTimeoutError):
                await server.run_request(ask).__aenter__()
            assert server.n_unfinished == 0
        finally:
            go_on.set()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/embeddings", {"input": "a"}),
        ("/api/embed", {"input": "a"}),
    ],
)
def test_timeout_counts_the_time_in_a_front_and_no_header_of_a_client(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(server.app.state.service, "settings", ServerSettings(request_timeout=900))

    async def ask(app: Any) -> int:
        headers = {WAITED_HEADER: "1000"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return (await client.post(path, json=body, headers=headers)).status_code

    async def on_its_loop(app: Any) -> int:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(app), server.loop))

    assert asyncio.run(on_its_loop(WaitedMiddleware(server.app))) == 504
    assert asyncio.run(on_its_loop(server.app)) == 200


def test_prepare_timeout_raises_unavailable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(service, "PREPARE_TIMEOUT", 0.05)
    monkeypatch.setattr(service, "prepare_request", lambda llm, ask: go_on.wait(60))

    async def test() -> None:
        server = service_without_model()
        try:
            for timeout in (None, 100):
                with pytest.raises(UnavailableError):
                    await server.run_request(GenerateRequest("a", SamplingParams(), timeout=timeout)).__aenter__()
            with pytest.raises(UnavailableError):
                await server.prepare(lambda: go_on.wait(60))
            assert server.n_unfinished == 0
        finally:
            go_on.set()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "model": "m", "max_tokens": 1}),
        ("/tokenize", {"content": "a"}),
    ],
)
def test_slow_preparations_leave_a_thread_for_the_figures_route(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    server, go_on = new_server(llm={"n_seq_max": 2}).ready(), threading.Event()
    tokenize, looked_at = server.llm.model.tokenize, threading.Event()

    def waits(*given: Any, **named: Any) -> list[int]:
        looked_at.set()
        assert go_on.wait(LONG)
        return tokenize(*given, **named)

    monkeypatch.setattr(server.llm.model, "tokenize", waits)
    with ThreadPoolExecutor(40) as clients:
        try:
            answers = [clients.submit(httpx.post, server.url + path, json=body, timeout=LONG) for _ in range(40)]
            assert looked_at.wait(LONG)
            figures = httpx.get(server.url + "/figures", timeout=LONG / 2)
            assert figures.json()["memory"]
        finally:
            go_on.set()
        assert {answer.result().status_code for answer in answers} == {200}


def test_schema_is_compiled_off_the_event_loop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    read = routes.read_generate_request
    monkeypatch.setattr(
        routes, "read_generate_request", lambda *given: threads.append(threading.current_thread()) or read(*given)
    )
    request_body = {"prompt": "a", "max_tokens": 1, "json_schema": {"type": "string"}}
    assert httpx.post(server.url + "/v1/completions", json=request_body, timeout=LONG).status_code == 200
    assert threads[0].name.startswith("pymtp prepare")


@pytest.mark.parametrize("field", ["json_schema", "guided_json"])
def test_rule_of_llama_cpps_form_is_compiled_off_the_event_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    threads = []
    read = llama_routes.read_native
    monkeypatch.setattr(
        llama_routes, "read_native", lambda *given: threads.append(threading.current_thread()) or read(*given)
    )
    request_body = {"prompt": "a", "n_predict": 1, field: {"type": "string"}}
    assert httpx.post(server.url + "/completion", json=request_body, timeout=LONG).status_code == 200
    assert threads[0].name.startswith("pymtp prepare")


@pytest.mark.parametrize(
    ("path", "body", "of_token"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "logprobs": True},
            '{"token":',
        ),
        ("/v1/completions", {"prompt": "a", "logprobs": 0}, "{}"),
        ("/completion", {"prompt": ["a", "b"], "n_probs": 1}, '{"id":'),
        ("/completion", {"prompt": "a", "n_probs": 1}, '{"id":'),
    ],
)
def test_log_probabilities_are_encoded_token_by_token_off_the_event_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], of_token: str
) -> None:
    pieces: list[str] = []
    encode = json_response.encode_json

    def note(content: Any) -> str:
        assert asyncio._get_running_loop() is None
        pieces.append(encode(content))
        return pieces[-1]

    monkeypatch.setattr(json_response, "encode_json", note)
    limits = {"max_tokens": 3, "ignore_eos": True, "temperature": 0}
    answer = httpx.post(server.url + path, json=body | limits, timeout=LONG)
    assert answer.status_code == 200
    n_tokens = 6 if isinstance(answer.json(), list) else 3
    assert sum(piece.startswith(of_token) for piece in pieces) == n_tokens


def test_too_many_logprobs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class PreparedError(Exception):
        pass

    def prepare_request(llm: object, ask: GenerateRequest) -> None:
        raise PreparedError

    monkeypatch.setattr(service, "prepare_request", prepare_request)

    def begin(**params: Any) -> None:
        asyncio.run(service_without_model().run_request(GenerateRequest("a", SamplingParams(**params))).__aenter__())

    for few in ({"logprobs": 20, "max_tokens": None}, {"logprobs": 100, "n": 8, "max_tokens": 4096}, {"n": 128}):
        with pytest.raises(PreparedError):
            begin(**few)
    for many in ({"logprobs": 100, "n": 128, "max_tokens": None}, {"logprobs": 100, "n": 16, "max_tokens": 4096}):
        with pytest.raises(InvalidRequestError, match="reduce max_tokens"):
            begin(**many)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
    ],
)
def test_request_is_prepared_and_submitted_in_one_call_of_the_preparers(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    calls = []
    llm = server.app.state.service.llm
    run_on = llm._run_on
    monkeypatch.setattr(llm, "_run_on", lambda threads, call: calls.append(threads) or run_on(threads, call))
    for stream in (False, True):
        assert httpx.post(server.url + path, json={"model": "m", "stream": stream} | body, timeout=LONG).is_success
    assert calls == [llm._preparers] * 2
