"""Tests of the replica of a Ray Serve application, called without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.late import ray_replica

from pymtp import InvalidRequestError, ModelLoadError, NativeError
from pymtp.options import LLMOptions
from pymtp.ray.routing import RoutingHint
from pymtp.server.settings import ServerSettings

OPTIONS = LLMOptions(n_ctx=4096, n_seq_max=2, n_threads=1, draft_tokens=3)
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "def"}], "temperature": 0}


@pytest.fixture(autouse=True)
def context(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(replica_id=SimpleNamespace(unique_id="abc123"))
    monkeypatch.setattr("ray.serve.get_replica_context", lambda: found)


@asynccontextmanager
async def replica(*given: Any) -> AsyncIterator[ray_replica.Replica]:
    """Make a replica as Ray does: it awaits the constructor."""
    made: Any = ray_replica.Replica.__new__(ray_replica.Replica)
    await made.__init__(*(given or (OPTIONS, None, ServerSettings(log_level="error"))))
    try:
        yield made
    finally:
        await made._life.__aexit__(None, None, None)


def request(path: str, body: dict[str, Any]) -> tuple[dict[str, Any], bytes, RoutingHint]:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    return scope, json.dumps(body).encode(), RoutingHint()


def test_answer_has_a_header_with_the_name_of_the_replica() -> None:
    async def test() -> None:
        async with replica() as made:
            stream = {**CHAT, "max_tokens": 20, "stream": True}
            streamed = [each async for batch in made.answer(*request("/v1/chat/completions", stream)) for each in batch]
            body = {"model": "demo", "input": "def", "max_output_tokens": 2}
            whole = [each async for batch in made.answer(*request("/v1/responses", body)) for each in batch]
        for messages in (streamed, whole):
            assert messages[0]["type"] == "http.response.start"
            assert (b"x-pymtp-replica", b"abc123") in messages[0]["headers"]
            assert not messages[-1].get("more_body")
        assert b"".join(each["body"] for each in streamed[1:]).endswith(b"data: [DONE]\n\n")
        assert json.loads(whole[1]["body"])["id"].startswith("resp_abc123_")

    asyncio.run(test())


def test_cancelled_call_of_a_replica_ends_the_generation() -> None:
    async def test() -> None:
        async with replica() as made:
            body = {**CHAT, "ignore_eos": True, "stream": True}
            answer = made.answer(*request("/v1/chat/completions", body))
            await anext(answer)
            service = made._app.state.service
            assert service.n_unfinished == 1
            await answer.aclose()  # type: ignore[attr-defined]
            assert service.n_unfinished == 0
            while service.llm.figures().running:
                await asyncio.sleep(0.01)

    asyncio.run(test())


def test_metrics_of_a_replica_have_a_label_with_its_name() -> None:
    async def test() -> None:
        async with replica() as made:
            for _ in range(2):
                samples = [each for metric in await made.metrics() for each in metric.samples]
                assert {each.labels["replica"] for each in samples} == {"abc123"}
                assert any(each.name == "pymtp:num_requests_max" and each.value == 2 for each in samples)

    asyncio.run(test())


def test_broken_engine_fails_the_health_check() -> None:
    async def test() -> None:
        async with replica() as made:
            await made.check_health()
            context = made._app.state.service.llm.llm.context
            context.inspect.break_on_purpose("clear_throws")
            async for _ in made.answer(*request("/v1/chat/completions", CHAT)):
                pass
            with pytest.raises(NativeError, match="cannot go on"):
                await made.check_health()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("prefix", "options", "said"),
    [("gone.prefix", {}, "cannot read the prefix"), (None, {"lora": "gone.gguf"}, "no such adapter")],
)
def test_replica_finds_a_missing_prefix_or_adapter_before_a_download(
    prefix: str | None, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[object] = []
    monkeypatch.setattr("pymtp.hub.from_pretrained.download_model", lambda name, **_: downloads.append(name))

    async def test() -> None:
        async with replica(LLMOptions("hf:owner/name", **options), prefix, ServerSettings(log_level="error")):
            pass

    with pytest.raises((InvalidRequestError, ModelLoadError), match=said):
        asyncio.run(test())
    assert downloads == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((LLMOptions("no such file"), None), ModelLoadError),
        ((LLMOptions(n_ctx=64), "no such file"), InvalidRequestError),
    ],
)
def test_constructor_of_a_replica_raises_if_the_model_cannot_be_loaded(
    given: tuple[Any, ...], error: type[Exception]
) -> None:
    async def test() -> None:
        async with replica(*given, ServerSettings(log_level="error")):
            pass

    with pytest.raises(error, match="no such file"):
        asyncio.run(test())
