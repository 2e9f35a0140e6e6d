"""Claims about responses that are stored: what goes on with them, and what is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from helpers.servers import Server
from openai import OpenAI

from pymtp import SamplingParams
from pymtp.server.http.ascii_json import Echoing
from pymtp.server.responses.ids import replica_of
from pymtp.server.responses.store import ResponseStore, Stored

USER = {"role": "user", "content": "def fibonacci(n):"}
GREEDY: dict[str, Any] = {"model": "demo", "input": [USER], "temperature": 0, "max_output_tokens": 16}


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_goes_on_with_a_response(server: Server, client: OpenAI, stream: bool) -> None:
    if stream:
        *_, last = client.responses.create(**GREEDY, stream=True)
        first = last.response
    else:
        first = client.responses.create(**GREEDY)
    second = client.responses.create(**GREEDY | {"input": "go on"}, previous_response_id=first.id)
    third = client.responses.create(**GREEDY | {"input": "and on"}, previous_response_id=second.id)
    chat = [USER, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "go on"}]
    chat += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "and on"}]
    assert third.output_text == server.llm.chat(chat, SamplingParams(max_tokens=16)).text
    assert third.previous_response_id == second.id


def test_instructions_are_not_carried_over(server: Server, client: OpenAI) -> None:
    first = client.responses.create(**GREEDY, instructions="Be brief.")
    second = client.responses.create(**GREEDY | {"input": "go on"}, previous_response_id=first.id)
    chat = [USER, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "go on"}]
    assert second.output_text == server.llm.chat(chat, SamplingParams(max_tokens=16)).text


def test_a_response_can_be_fetched_until_it_is_deleted(client: OpenAI) -> None:
    response = client.responses.create(**GREEDY)
    assert client.responses.retrieve(response.id) == response
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)


def test_one_of_several_servers_has_its_name_in_what_it_stores(new_server: Callable[..., Server]) -> None:
    server = new_server(replica="abc123").ready()
    client = OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)
    response = client.responses.create(**GREEDY)
    assert replica_of(response.id) == "abc123"
    assert client.responses.retrieve(response.id) == response


def test_a_response_that_is_not_to_be_stored_is_not(client: OpenAI) -> None:
    response = client.responses.create(**GREEDY, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id") as raised:
        client.responses.create(**GREEDY, previous_response_id=response.id)
    assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")


def stored(name: str, text: str = "") -> Stored:
    return Stored(Echoing({"id": name}, {"store": True}), [{"role": "user", "content": text}])


def test_the_response_that_was_not_used_the_longest_goes_first() -> None:
    store = ResponseStore(most=2)
    store.put(stored("a"))
    store.put(stored("b"))
    assert store.get("a") is not None
    store.put(stored("c"))
    assert [store.get(name) is not None for name in "abc"] == [True, False, True]


def test_a_store_holds_no_more_text_than_it_may() -> None:
    store = ResponseStore(most_characters=1000)
    for i in range(100):
        store.put(stored(f"r{i}", "x" * 300))
        assert len(store) <= 2
    assert store.get("r99") is not None
    store.put(stored("large", "x" * 2000))
    assert store.get("large") is None
    assert store.get("r99") is not None


def test_what_is_removed_makes_place() -> None:
    store = ResponseStore(most_characters=1000)
    for i in range(20):
        store.put(stored(f"r{i}", "x" * 700))
        assert store.remove(f"r{i}")
    assert not store.remove("r0")
    store.put(stored("last", "x" * 700))
    assert store.get("last") is not None
