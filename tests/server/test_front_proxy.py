"""Tests of what a front passes on and what it answers itself. The workers are scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest
from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from helpers.fake_workers import FakeModels, settle
from prometheus_client import CollectorRegistry

from pymtp import LLM
from pymtp.errors import ModelLoadError
from pymtp.server.app import create_app
from pymtp.server.front import proxy
from pymtp.server.front.app import create_front_app
from pymtp.server.front.metrics import worker_families
from pymtp.server.front.proxy import read_named
from pymtp.server.front.worker import own_headers
from pymtp.server.settings import ServerSettings

Ask = Callable[[httpx.AsyncClient, FakeModels], Coroutine[Any, Any, None]]
NAMES = {"a": 40, "b": 40, "c": 40}


def play(ask: Ask, answer: Any = None, **settings: Any) -> None:
    """Run `ask` with a client of a front of three models, of which two fit."""

    async def use() -> None:
        fakes = FakeModels(NAMES, *([] if answer is None else [answer]))
        app = create_front_app(ServerSettings(**settings), fakes.pool)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await ask(client, fakes)

    asyncio.run(asyncio.wait_for(use(), 20))


async def say(name: str, request: httpx.Request) -> httpx.Response:
    body = json.loads(request.content) if request.content else None
    headers = {"x-request-id": "worker", "x-pymtp-ignored": "seed", "connection": "close"}
    seen = {"worker": name, "path": request.url.raw_path.decode(), "method": request.method, "body": body}
    return httpx.Response(418, json=seen | {"headers": dict(request.headers)}, headers=headers)


def test_post_requests_choose_their_model_by_name_and_the_first_without_one() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
            for body, name in (({"model": "b"}, "b"), ({}, "a"), ({"model": None}, "a")):
                assert (await client.post(path, json=body)).json()["worker"] == name
        assert (await client.post("/tokenize?model=b", json={})).json()["worker"] == "b"
        assert (await client.get("/slots?model=b")).json()["path"] == "/slots?model=b"
        assert (await client.get("/props?model=b")).json()["model_alias"] == "b"

    play(ask, say)


def test_status_headers_and_query_pass_through_unchanged() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        headers = {"x-request-id": "mine", "authorization": "Bearer k", "anthropic-version": "1", "connection": "x"}
        answer = await client.post("/v1/messages?beta=true&q=%2F", json={"model": "a"}, headers=headers)
        seen = answer.json()
        assert (answer.status_code, answer.headers["x-pymtp-ignored"]) == (418, "seed")
        assert answer.headers.get_list("x-request-id") == ["mine"]
        assert "connection" not in answer.headers
        assert seen["path"] == "/v1/messages?beta=true&q=%2F"
        sent = seen["headers"]
        assert (sent["authorization"], sent["anthropic-version"], sent["x-request-id"]) == ("Bearer k", "1", "mine")
        assert sent["x-forwarded-for"] == "127.0.0.1"
        assert "connection" not in sent

    play(ask, say)


def test_time_that_a_request_waits_for_its_model_is_told_to_the_worker() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        fakes.held.add("a")
        asking = asyncio.ensure_future(client.post("/v1/completions", json={}, headers={"x-pymtp-waited": "-1e9"}))
        while not fakes.models["a"].users:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        fakes.held.clear()
        assert 0.05 <= float((await asking).json()["headers"]["x-pymtp-waited"]) < 20
        fakes.held.add("b")
        hasty = await client.post("/v1/completions", json={"model": "b", "timeout": 0.1})
        assert (hasty.status_code, "still being loaded" in hasty.text) == (503, True)
        fakes.held.clear()
        for wrong in (-(10**400), 10**400, -1, "1", True):  # the worker refuses it
            assert (await client.post("/v1/completions", json={"model": "b", "timeout": wrong})).status_code == 418

    play(ask, say)


def test_front_refuses_unknown_models_paths_and_bodies_without_waking_a_model() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        unknown = await client.post("/v1/chat/completions", json={"model": "zz"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert "the models are a, b, c" in unknown.json()["error"]["message"]
        anthropic = await client.post("/v1/messages", json={"model": "zz"})
        assert (anthropic.status_code, anthropic.json()["type"]) == (404, "error")
        assert (await client.post("/v1/completions", json={"model": 3})).json()["error"]["param"] == "model"
        headers = {"content-type": "application/json"}
        broken = await client.post("/v1/completions", content=b'{"model":', headers=headers)
        assert "the body is not JSON" in broken.json()["error"]["message"]
        for headers in ({"content-type": "text/plain; a=application/json"}, {}):  # as a page of another site can send
            foreign = await client.post("/v1/completions", content=b"{}", headers=headers)
            assert (foreign.status_code, foreign.json()["error"]["code"]) == (400, "invalid_content_type")
        assert (await client.get("/v1/nothing")).status_code == 404
        assert (await client.get("/v1/completions")).status_code == 405
        assert (await client.get("/v1/models/zz")).status_code == 404
        assert fakes.events == []

    play(ask, say)


def test_front_holds_keys_hosts_and_sizes() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        body = {"model": "a", "prompt": "x" * 100}
        assert (await client.post("/v1/completions", json=body)).status_code == 401
        key = {"authorization": "Bearer k"}
        assert (await client.post("/v1/completions", json=body, headers=key)).status_code == 418
        large = {"model": "a", "prompt": "x" * 2000}
        assert (await client.post("/v1/completions", json=large, headers=key)).status_code == 413
        foreign = {**key, "host": "evil.example"}
        assert (await client.post("/v1/completions", json=body, headers=foreign)).status_code == 403
        assert (await client.post("/models/unload", json={"model": "a"})).status_code == 401

    play(ask, say, api_keys=("k",), max_body_bytes=1000)


def test_models_tell_their_state_as_llama_servers_router_does() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        async def states() -> dict[str, str]:
            return {card["id"]: card["status"]["value"] for card in (await client.get("/v1/models")).json()["data"]}

        assert await states() == {"a": "unloaded", "b": "unloaded", "c": "unloaded"}
        fakes.held.add("a")
        assert (await client.post("/models/load", json={"model": "a"})).json() == {"success": True}
        await settle()
        assert (await states())["a"] == "loading"
        fakes.held.clear()
        await settle()
        assert (await states())["a"] == "loaded"
        assert (await client.get("/v1/models/a")).json()["max_model_len"] == 512
        again = await client.post("/models/load", json={"model": "a"})
        assert (again.status_code, again.json()["error"]["message"]) == (400, "model is already running")
        assert (await client.post("/models/unload", json={"model": "a"})).json() == {"success": True}
        await settle()
        assert (await states())["a"] == "unloaded"
        again = await client.post("/models/unload", json={"model": "a"})
        assert (again.status_code, again.json()["error"]["message"]) == (400, "model is not running")
        assert (await client.post("/models/load", json={"model": "zz"})).status_code == 404

    play(ask)


def test_properties_of_a_sleeping_model_are_told_without_waking_it() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        await fakes.ask("b")
        assert (await client.get("/props?model=b")).json() == {"model_alias": "b", "is_sleeping": False}
        fakes.pool.unload(fakes.models["b"])
        await settle()
        used = fakes.models["b"].used_at
        assert (await client.get("/props?model=b")).json() == {"model_alias": "b", "is_sleeping": True}
        assert (await client.get("/api/tags")).json()["models"][1] == {"name": "b", "size": 7}
        assert (await client.post("/api/show", json={"model": "b:latest"})).json()["by"] == "worker"
        assert fakes.models["b"].used_at == used
        assert fakes.events == [("start", "b"), ("stop", "b")]

    play(ask, say)


def test_a_model_that_was_never_loaded_is_told_by_its_file() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        for body in ({"model": "b"}, {"name": "b"}, {"name": "a", "model": "b"}):
            assert (await client.post("/api/show", json=body)).json() == {"details": {"family": "b"}, "by": "file"}
        assert (await client.get("/props?model=a&autoload=true")).json() == {"model_alias": "a", "is_sleeping": True}
        assert (await client.get("/v1/models/c")).json()["meta"] == {"n_ctx": 512}
        assert (await client.post("/api/show", json={"name": "zz"})).status_code == 404
        fakes.models["c"].description, fakes.wrong["c"] = None, ModelLoadError("no such file")
        broken = await client.post("/api/show", json={"model": "c"})
        assert (broken.status_code, broken.json()) == (503, {"error": "the model c cannot be read: no such file"})
        assert (await client.get("/v1/models/c")).json()["status"] == {"value": "unloaded"}
        assert fakes.events == []

    play(ask, say)


def test_health_of_a_single_model_is_loading_until_it_was_loaded_once() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        assert (await client.get("/health")).json() == {"status": "ok"}  # several models are loaded on demand
        del fakes.pool.models[1:]
        waiting = await client.get("/health")
        assert (waiting.status_code, waiting.json()) == (503, {"status": "loading"})
        await fakes.ask("a")
        fakes.pool.unload(fakes.models["a"])
        await settle()
        assert fakes.loaded == []
        assert (await client.get("/health")).status_code == 200

    play(ask)


def test_failed_load_is_told_by_status_and_answer() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        fakes.wrong["a"] = OSError("no memory")
        answer = await client.post("/v1/completions", json={"model": "a"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["message"] == "the model a cannot be loaded: no memory"
        status = (await client.get("/v1/models/a")).json()["status"]
        assert status == {"value": "unloaded", "failed": True, "error": "no memory"}

    play(ask)


def test_props_and_metrics_without_a_model_are_those_of_the_front() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        props = (await client.get("/props")).json()
        assert (props["role"], props["models_autoload"]) == ("router", True)
        assert 'pymtp:model_loaded{model_name="a"} 0.0' in (await client.get("/metrics")).text
        assert (await client.get("/metrics?model=a")).status_code == 503
        assert (await client.get("/slots?model=a")).status_code == 503
        assert fakes.events == []

    play(ask)


def test_models_are_not_loaded_by_requests_without_autoload() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        fakes.pool.autoload = False
        assert (await client.get("/props")).json()["models_autoload"] is False
        refused = await client.post("/tokenize", json={"model": "a"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        assert "POST /models/load" in refused.json()["error"]["message"]
        assert (await client.get("/slots?model=a")).status_code == 503
        assert fakes.events == []
        assert (await client.post("/models/load", json={"model": "a"})).status_code == 200
        assert (await client.post("/tokenize", json={"model": "a"})).status_code == 418
        assert (await client.post("/tokenize?autoload=true", json={"model": "b"})).status_code == 418
        assert (await client.post("/tokenize?autoload=false", json={"model": "c"})).status_code == 400

    play(ask, say)


METRICS = '# HELP pymtp:rounds_total R.\n# TYPE pymtp:rounds_total counter\npymtp:rounds_total{{model_name="{}"}} {}\n'
METRICS += '# TYPE pymtp:prompt_tokens_total counter\npymtp:prompt_tokens_total{{model_name="{}"}} {}\n'
METRICS += "# TYPE process_open_fds gauge\nprocess_open_fds 3.0\n"


def test_metrics_of_all_loaded_models_are_one_exposition() -> None:
    async def metrics(name: str, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=METRICS.format(name, 7, name, 5) if request.url.path == "/metrics" else "")

    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        await fakes.ask("a", "b")
        lines = (await client.get("/metrics")).text.splitlines()
        assert [line for line in lines if line.startswith("pymtp:rounds_total")] == [
            'pymtp:rounds_total{model_name="a"} 7.0',
            'pymtp:rounds_total{model_name="b"} 7.0',
        ]
        assert [line for line in lines if line.startswith("pymtp:prompt_tokens_total")] == [
            'pymtp:prompt_tokens_total{model_name="a"} 5.0',
            'pymtp:prompt_tokens_total{model_name="b"} 5.0',
        ]
        types = [line for line in lines if line.startswith("# TYPE ")]
        assert len(types) == len(set(types))
        assert "# TYPE pymtp:rounds_total counter" in types
        assert sum(line.startswith("process_open_fds") for line in lines) == 1

    play(ask, metrics)


class Breaks(httpx.AsyncByteStream):
    """A body whose worker dies after some parts."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        raise httpx.ReadError("gone")


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/chat/completions", b'data: {"error"'),
        ("/v1/messages", b'event: error\ndata: {"type": "error"'),
        ("/v1/responses", b'event: error\ndata: {"type": "error", "code": "unavailable"'),
    ],
)
def test_stream_of_a_worker_that_dies_ends_with_an_error_after_its_last_whole_event(path: str, last: bytes) -> None:
    async def dies(name: str, request: httpx.Request) -> httpx.Response:
        parts = Breaks(b"data: 1\n\ndata", b": 2\n", b"\ndata: {")
        return httpx.Response(200, stream=parts, headers={"content-type": "text/event-stream; charset=utf-8"})

    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        body = (await client.post(path, json={"stream": True})).content
        first, second, third, end = body.split(b"\n\n")
        assert (first, second, end) == (b"data: 1", b"data: 2", b"")
        assert third.startswith(last)
        assert b"the worker of the model a ended before the answer did" in third

    play(ask, dies)


def test_stream_of_lines_of_a_worker_that_dies_ends_with_an_error_line() -> None:
    async def dies(name: str, request: httpx.Request) -> httpx.Response:
        parts = Breaks(b'{"a":1}\n{"a"', b":2}\n{")
        return httpx.Response(200, stream=parts, headers={"content-type": "application/x-ndjson"})

    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        lines = (await client.post("/api/chat", json={})).text.split("\n")
        assert (lines[:2], lines[3:]) == (['{"a":1}', '{"a":2}'], [""])
        assert "the worker of the model a ended before the answer did" in json.loads(lines[2])["error"]

    play(ask, dies)


def test_worker_that_dies_before_its_answer_is_a_503_with_retry_after() -> None:
    async def dies(name: str, request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("gone")

    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        answer = await client.post("/v1/completions", json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "the worker of the model a ended" in answer.json()["error"]["message"]
        assert fakes.models["a"].users == 0

    play(ask, dies)


def test_request_that_meets_a_worker_that_has_just_ended_goes_to_the_next_one() -> None:
    async def use() -> None:
        connected = iter([False, True])

        async def answer(name: str, request: httpx.Request) -> httpx.Response:
            if not next(connected):
                asyncio.get_running_loop().call_soon(fakes.worker("a").die)
                raise httpx.ConnectError("refused")
            return await say(name, request)

        fakes = FakeModels(NAMES, answer)
        app = create_front_app(ServerSettings(), fakes.pool)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            answered = await client.post("/v1/completions", json={"prompt": "x"})
        assert answered.json()["body"] == {"prompt": "x"}
        assert fakes.events == [("start", "a"), ("stop", "a"), ("start", "a")]

    asyncio.run(asyncio.wait_for(use(), 20))


def test_request_that_meets_a_worker_that_takes_no_requests_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "END_WAIT", 0.01)

    async def refuses(name: str, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("too many open files")

    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        answer = await client.post("/v1/completions", json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert fakes.models["a"].users == 0

    play(ask, refuses)


def test_a_client_that_disconnects_cancels_the_request_of_the_worker() -> None:
    async def use() -> None:
        begun, closed = asyncio.Event(), asyncio.Event()

        class Endless(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                yield b"data: 1\n\n"
                begun.set()
                await asyncio.Event().wait()

            async def aclose(self) -> None:
                closed.set()

        async def answer(name: str, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, stream=Endless(), headers={"content-type": "text/event-stream"})

        fakes = FakeModels(NAMES, answer)
        app = create_front_app(ServerSettings(), fakes.pool)
        sent: list[dict[str, Any]] = []
        messages = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        await app({**scope, "raw_path": b"/v1/completions", "state": {}}, receive, send)
        assert [message.get("body") for message in sent] == [None, b"data: 1\n\n"]
        assert closed.is_set()
        assert fakes.models["a"].users == 0

    asyncio.run(asyncio.wait_for(use(), 20))


def test_front_knows_itself_to_its_workers_by_keys_of_any_letters() -> None:
    settings = ServerSettings(api_keys=("schlüssel-ключ", "k"))

    async def ask() -> None:
        app = create_app(settings, LLM)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            assert (await client.get("/version", headers=own_headers(settings))).status_code == 200
            assert (await client.get("/version")).status_code == 401

    asyncio.run(ask())


def test_stored_responses_go_to_the_model_that_made_them() -> None:
    stored = "resp_m1_" + "0" * 32

    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        gone = await client.get(f"/v1/responses/{stored}")
        assert (gone.status_code, "their model is unloaded" in gone.json()["error"]["message"]) == (404, True)
        await fakes.ask("b")
        assert (await client.get(f"/v1/responses/{stored}")).json()["worker"] == "b"
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            answer = await client.post(path, json={"previous_response_id": stored})
            assert answer.json()["worker"] == "b"
        many_digits = stored.replace("m1", "m" + "1" * 5000)
        assert (await client.post("/v1/responses", json={"previous_response_id": many_digits})).status_code == 418

    play(ask, say)


def test_no_get_request_loads_a_model() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        for path in ("/v1/responses/x?model=b", f"/v1/responses/resp_m1_{'0' * 32}", "/slots?model=b&autoload=true"):
            assert (await client.get(path)).status_code in (404, 503)
        assert (await client.delete("/v1/responses/x")).status_code == 404
        for path in ("/v1/models", "/v1/models/b", "/props?model=b", "/api/tags", "/api/ps", "/metrics", "/health"):
            assert (await client.get(path)).status_code == 200
        assert fakes.events == []

    play(ask, say)


def test_instances_of_predict_go_to_their_models() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        instances = [{"@requestFormat": "completions", "model": name} for name in ("b", "a", "zz")]
        b, a, unknown = (await client.post("/predict", json={"instances": instances})).json()["predictions"]
        assert [(each["worker"], each["path"]) for each in (b, a)] == [(name, "/v1/completions") for name in "ba"]
        assert unknown["error"]["code"] == "model_not_found"

    play(ask, say)


def test_front_has_all_paths_of_a_worker() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        worker = create_app(ServerSettings(), LLM).openapi()["paths"]
        assert len(worker) > 20
        for path, operations in worker.items():
            for method in operations:
                url = path.replace("{name}", "a").replace("{response_id}", "resp_m0_" + "0" * 32)
                await fakes.ask("a")
                answer = await client.request(method, url, json={"model": "a"} if method == "post" else None)
                assert answer.status_code not in (404, 405), (method, path)

    play(ask, say)


def test_ollamas_older_name_of_the_model_is_read_on_its_paths_alone() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        assert (await client.post("/api/embed", json={"name": "b"})).json()["worker"] == "b"
        assert (await client.post("/api/embed", json={"name": "b", "model": "c"})).json()["worker"] == "c"
        assert (await client.post("/v1/completions", json={"name": "b"})).json()["worker"] == "a"
        assert (await client.post("/api/embed", json={"name": "zz"})).status_code == 404

    play(ask, say)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("how", ["answer", "error", "no load"])
def test_stream_that_waits_for_its_model_gets_keepalives(path: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "KEEPALIVE_SECONDS", 0)

    async def answer(name: str, request: httpx.Request) -> httpx.Response:
        if how == "error":
            return httpx.Response(400, json={"error": {"message": "wrong", "code": "invalid_value"}})
        return httpx.Response(200, content=b"data: 1\n\n", headers={"content-type": "text/event-stream"})

    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        fakes.held.add("a")
        asking = asyncio.ensure_future(client.post(path, json={"stream": True}))
        whole = asyncio.ensure_future(client.post(path, json={}))
        while fakes.models["a"].users < 2:
            await asyncio.sleep(0)
        await settle()
        if how == "no load":
            fakes.wrong["a"] = ModelLoadError("no such file")
        fakes.held.clear()
        answered = await asking
        assert answered.headers["content-type"] == "text/event-stream; charset=utf-8"
        first, *_, last, end = answered.text.split("\n\n")
        assert (answered.status_code, first, end) == (200, ": waiting", "")
        if how == "answer":
            assert last == "data: 1"
        else:
            assert ("wrong" if how == "error" else "the model a cannot be loaded: no such file") in last
            assert last.startswith("data: {" if path == "/v1/chat/completions" else "event: error\ndata: {")
        assert (await whole).status_code == {"answer": 200, "error": 400, "no load": 503}[how]

    play(ask, answer)


def test_paths_and_queries_of_any_bytes_reach_the_worker_in_ascii() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        await fakes.ask("a")
        answer = await client.get("/v1/responses/%C3%A9%3Fa?limit=%C3%A9&after=\u00e9")
        assert answer.json()["path"] == "/v1/responses/%C3%A9%3Fa?limit=%C3%A9&after=%C3%A9"
        long = await client.get("/v1/responses/" + ":" * 30_000)
        assert (long.status_code, "too long" in long.text) == (400, True)

    play(ask, say)


def test_lists_for_ollamas_clients_have_all_models() -> None:
    async def cards(name: str, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"models": [{"name": name, "size": 7}]})

    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        await fakes.ask("b")
        tags = (await client.get("/api/tags")).json()["models"]
        assert [(card["name"], card["size"]) for card in tags] == [("a", 0), ("b", 7), ("c", 0)]
        assert [card["name"] for card in (await client.get("/api/ps")).json()["models"]] == ["b"]
        assert (await client.post("/api/chat", json={"model": "b:latest"})).json()["models"][0]["name"] == "b"

    play(ask, cards)


def test_schema_of_a_front_has_the_paths_of_a_worker_and_its_own() -> None:
    async def ask(client: httpx.AsyncClient, fakes: FakeModels) -> None:
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert {"/v1/chat/completions", "/v1/messages", "/models/load", "/models/unload", "/v1/models"} <= set(paths)
        assert "security" in paths["/v1/models"]["get"]

    play(ask, api_keys=("k",))


@pytest.mark.parametrize(
    ("body", "name"), [(b'{"model": "a", "x": [NaN]}', "a"), (b'{"x": "\\ud83d", "model": "a"}', "a"), (b"[1]", None)]
)
def test_name_is_read_from_all_bodies_that_python_takes(body: bytes, name: str | None) -> None:
    assert read_named(body).model == name


@pytest.mark.parametrize(("body", "error"), [(b"{", RequestValidationError), (b'"\xff"', HTTPException)])
def test_bodies_that_are_not_json_are_refused_as_fastapi_does(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_named(body)


def test_merged_metrics_take_no_metric_without_a_model() -> None:
    found = [family.name for family in worker_families(CollectorRegistry(), [METRICS.format("a", 1, "a", 1)]).collect()]
    assert found == ["pymtp:rounds", "pymtp:prompt_tokens"]


def test_merged_metrics_of_one_model_keep_the_names_of_llama_server() -> None:
    text = "# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total 3\n"
    for texts, expected in (([text], ["llamacpp:n_decode"]), ([text, text], [])):
        assert [family.name for family in worker_families(CollectorRegistry(), texts).collect()] == expected
