"""Tests of stored responses: their continuation, and their eviction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.late import openai
from helpers.servers import Server

from pymtp import SamplingParams
from pymtp.server.http.json_response import PreencodedObject
from pymtp.server.responses.store import ResponseStore, StoredResponse, replica_of_response

USER = {"role": "user", "content": "def fibonacci(n):"}
GREEDY: dict[str, Any] = {"model": "demo", "input": [USER], "temperature": 0, "max_output_tokens": 16}


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


def seen(response: Any) -> tuple[str, int]:
    """Return the text of a response, and the length of its prompt."""
    return response.output_text, response.usage.input_tokens


def expected(server: Server, chat: list[dict[str, str]]) -> tuple[str, int]:
    done = server.llm.chat(chat, SamplingParams(max_tokens=16))
    return done.content, len(done.prompt_token_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_previous_response_id_continues_the_chat(server: Server, client: openai.OpenAI, stream: bool) -> None:
    if stream:
        *_, last = client.responses.create(**GREEDY, stream=True)
        first = last.response
    else:
        first = client.responses.create(**GREEDY)
    second = client.responses.create(**GREEDY | {"input": "go on"}, previous_response_id=first.id)
    third = client.responses.create(**GREEDY | {"input": "and on"}, previous_response_id=second.id)
    chat = [USER, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "go on"}]
    chat += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "and on"}]
    assert seen(third) == expected(server, chat)
    assert third.previous_response_id == second.id


def test_item_reference_stands_for_a_stored_item(server: Server, client: openai.OpenAI) -> None:
    first = client.responses.create(**GREEDY)
    items: Any = [USER, {"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "go on"}]
    second = client.responses.create(**GREEDY | {"input": items})
    chat = [USER, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "go on"}]
    assert seen(second) == expected(server, chat)


def test_instructions_do_not_apply_to_the_next_response(server: Server, client: openai.OpenAI) -> None:
    first = client.responses.create(**GREEDY, instructions="Be brief.")
    second = client.responses.create(**GREEDY | {"input": "go on"}, previous_response_id=first.id)
    chat = [USER, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "go on"}]
    assert seen(second) == expected(server, chat)


def test_stored_response_can_be_fetched_and_deleted(client: openai.OpenAI) -> None:
    response = client.responses.create(**GREEDY)
    assert client.responses.retrieve(response.id) == response
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)


def test_response_id_names_the_replica(new_server: Callable[..., Server]) -> None:
    server = new_server(replica="abc123").ready()
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)
    response = client.responses.create(**GREEDY)
    assert replica_of_response(response.id) == "abc123"
    assert client.responses.retrieve(response.id) == response


def test_stored_responses_are_unknown_to_other_keys(new_server: Callable[..., Server]) -> None:
    server = new_server(api_keys=("a" * 8, "b" * 8)).ready()
    own, other = (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) for key in server.settings.api_keys
    )
    response = own.responses.create(**GREEDY)
    for call in (other.responses.retrieve, other.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    with pytest.raises(openai.BadRequestError) as raised:
        other.responses.create(**GREEDY, previous_response_id=response.id)
    assert raised.value.code == "previous_response_not_found"
    reference: Any = [USER, {"type": "item_reference", "id": response.output[0].id}, {"role": "user", "content": "go"}]
    unknown: Any = [USER, {"type": "item_reference", "id": "msg_0"}, {"role": "user", "content": "go"}]
    seen, unseen = (other.responses.create(**GREEDY | {"input": given}) for given in (reference, unknown))
    assert seen.usage is not None
    assert unseen.usage is not None
    assert seen.usage.input_tokens == unseen.usage.input_tokens
    assert own.responses.retrieve(response.id) == response


def test_store_false_stores_nothing(client: openai.OpenAI) -> None:
    response = client.responses.create(**GREEDY, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id") as raised:
        client.responses.create(**GREEDY, previous_response_id=response.id)
    assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")


def stored(name: str, text: str = "") -> StoredResponse:
    return StoredResponse(PreencodedObject({"id": name}, {"store": True}), [{"role": "user", "content": text}])


def test_response_store_evicts_the_least_recently_used() -> None:
    store = ResponseStore(max_responses=2)
    store.put(stored("a"))
    store.put(stored("b"))
    assert store.get("a") is not None
    store.put(stored("c"))
    assert [store.get(name) is not None for name in "abc"] == [True, False, True]


def test_response_store_limits_its_characters() -> None:
    store = ResponseStore(max_characters=1000)
    for i in range(100):
        store.put(stored(f"r{i}", "x" * 300))
        assert len(store) <= 2
    assert store.get("r99") is not None
    store.put(stored("large", "x" * 2000))
    assert store.get("large") is None
    assert store.get("r99") is not None


def test_removed_responses_no_longer_count_towards_the_character_limit() -> None:
    store = ResponseStore(max_characters=1000)
    for i in range(20):
        store.put(stored(f"r{i}", "x" * 700))
        assert store.remove(f"r{i}")
    assert not store.remove("r0")
    store.put(stored("last", "x" * 700))
    assert store.get("last") is not None


def test_one_owner_does_not_evict_the_responses_of_others() -> None:
    for store, text in ((ResponseStore(max_responses=4), ""), (ResponseStore(max_characters=1000), "x" * 300)):
        store.put(stored("first"), "a")
        for i in range(9):
            store.put(stored(f"r{i}", text), "b")
        assert store.get("first", "a") is not None
        assert store.get("first", "b") is None
        assert store.get("r8", "b") is not None
        assert store.get("r0", "b") is None
