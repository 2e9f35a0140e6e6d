"""Tests of the shares of clients in the server's queue, and of what they see of each other's prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp.engine.request import Caller, current_caller
from pymtp.openai.request_body import CHAT, TEXT, read_generate_request
from pymtp.server.errors import QueueFullError
from pymtp.server.messages.read import read_message_request
from pymtp.server.rate import MAX_EVENTS, MAX_SECONDS, Rate
from pymtp.server.responses.read import read_response_request
from pymtp.server.service import Service
from pymtp.server.settings import ServerSettings

KEYS = ("key-a", "key-b")


def new_service(n_seq_max: int = 4, max_queue: int = 8) -> Service:
    llm: Any = SimpleNamespace(
        llm=SimpleNamespace(context=SimpleNamespace(n_seq_max=n_seq_max), model=SimpleNamespace(path=Path("m")))
    )
    metrics: Any = SimpleNamespace(register_engine=lambda llm, name: None)
    return Service(llm, ServerSettings(max_queue=max_queue), metrics)


@contextmanager
def admitted(service: Service, client: str, *completions: int) -> Iterator[Any]:
    token = current_caller.set(Caller(client))
    try:
        with service.admit(*completions) as admission:
            yield admission
    finally:
        current_caller.reset(token)


def on_loop(test: Callable[[], None]) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


def test_request_of_many_prompts_takes_only_the_places_that_it_uses_at_once() -> None:
    def test() -> None:
        service = new_service()
        with admitted(service, "a", 8000, 8) as many, admitted(service, "a", 1), admitted(service, "b", 3):
            assert service.n_unfinished == 8004
            service._release(many, 7996)
            assert service._places == {"a": 5, "b": 3}
        assert (service.n_unfinished, service._places) == (0, {})

    on_loop(test)


def test_client_within_its_share_is_admitted_although_another_fills_the_queue() -> None:
    def test() -> None:
        service = new_service()  # 12 places
        with ExitStack() as stack:
            for _ in range(12):
                stack.enter_context(admitted(service, "a", 1))
            with pytest.raises(QueueFullError), admitted(service, "a", 1):
                pass
            for _ in range(6):
                stack.enter_context(admitted(service, "b", 1))
            with pytest.raises(QueueFullError), admitted(service, "b", 1):
                pass
            stack.enter_context(admitted(service, "c", 4))
            with pytest.raises(QueueFullError), admitted(service, "c", 1):
                pass
        assert service._places == {}

    on_loop(test)


def test_retry_after_is_the_time_until_enough_completions_have_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    def test() -> None:
        now = [100.0]
        service = new_service()
        service._rate = Rate(lambda: now[0])
        with admitted(service, "a", 12) as admission:
            now[0] += 5
            service._release(admission, 2)
            with pytest.raises(QueueFullError, match="in 20 seconds") as full, admitted(service, "a", 10):
                pass
            assert full.value.retry_after == 20

    on_loop(test)


def test_rate_counts_recent_events() -> None:
    now = [0.0]
    rate = Rate(lambda: now[0])
    now[0] = 7
    assert rate.seconds_until(1) == 7  # nothing was freed: as long again
    for _ in range(2 * MAX_EVENTS):
        now[0] += 0.5
        rate.add(1)
    assert rate.seconds_until(10) == 5
    assert rate.seconds_until(0) == 1
    assert rate.seconds_until(10**9) == MAX_SECONDS


@pytest.mark.parametrize("api", [CHAT, TEXT, "messages", "responses"])
def test_cache_fields_are_read_in_each_api(api: str) -> None:
    fields = {"cache_salt": "s", "cache_prompt": False, "max_tokens": 5}
    messages = [{"role": "user", "content": "a"}]
    if api == "messages":
        ask = read_message_request(fields | {"messages": messages})
    elif api == "responses":
        ask = read_response_request(fields, messages)
    else:
        ask = read_generate_request(api, fields | ({"messages": messages} if api == CHAT else {"prompt": "a"}))
    assert (ask.params.cache_salt, ask.params.cache_prompt) == ("s", False)


@pytest.fixture(scope="module")
def keyed() -> Iterator[Server]:
    server = Server(ServerSettings(api_keys=KEYS), n_seq_max=2).ready()
    yield server
    server.close()


def ask(server: Server, key: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers={"x-api-key": key}, timeout=LONG)


def cached(server: Server, key: str, prompt: str, **body: Any) -> int:
    answer = ask(server, key, TEXT, prompt=prompt, max_tokens=1, **body).json()
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.mark.parametrize(
    ("key", "other"), [(KEYS[1], {}), (KEYS[0], {"cache_salt": "s"}), (KEYS[0], {"cache_prompt": False})]
)
def test_keys_and_salts_reuse_only_their_own_prompts(keyed: Server, key: str, other: dict[str, Any]) -> None:
    secret = f"def f(x):\n    return {key}, {other}\n" * 20
    assert cached(keyed, KEYS[0], secret) == 0
    assert cached(keyed, key, secret + "b", **other) == 0
    assert cached(keyed, KEYS[0], secret + "c") > 0
    spaces = [contents.space for contents in keyed.llm._engine.prefix_cache.store.sequences]
    assert not any(key in str(space) for key in KEYS for space in spaces)  # digests only


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "?"}]}),
        (TEXT, {"prompt": "?"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "?"}], "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "?"}]}),
        ("/v1/responses", {"input": "?"}),
    ],
)
def test_prompt_that_can_never_fit_is_refused_untokenized(
    keyed: Server, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    model = keyed.llm.model
    limit = keyed.llm.context.n_ctx * model.max_token_bytes

    def tokenize(text: str, **_: Any) -> list[int]:
        raise AssertionError("it is tokenized")

    monkeypatch.setattr(model, "tokenize", tokenize)
    text = "a" * (limit + 1)
    whole = {
        name: text if value == "?" else [{**value[0], "content": text}] if isinstance(value, list) else value
        for name, value in body.items()
    }
    refused = ask(keyed, KEYS[0], path, model="m", **whole)
    assert refused.status_code == 400
    assert f"have at most {limit} bytes" in refused.json()["error"]["message"]
