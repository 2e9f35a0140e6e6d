"""Tests of routing: all turns of a chat go to one replica, chats are spread evenly, and full replicas are avoided."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymtp.ray.routing import BEGINNING, RoutingHint, rank_replicas, routing_hint
from pymtp.server.responses.store import new_response_id, replica_of_response

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
SYSTEM = {"role": "system", "content": "You are brief."}
USER = {"role": "user", "content": "Why is the sky blue?"}
TURNS = [USER, {"role": "assistant", "content": "Air."}, {"role": "user", "content": "And the sea?"}]
TOOLS = [{"type": "function", "function": {"name": "look"}}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
FIELDS = ("messages", "input", "prompt", "system", "tools", "instructions", "previous_response_id", "prompt_cache_key")
NAMES = st.sets(st.text("abc123", min_size=1), min_size=1, max_size=10)


def hint_for(path: str, **body: Any) -> RoutingHint:
    return routing_hint("POST", path, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("path", "first", "later", "other"),
    [
        (CHAT, {"messages": [SYSTEM, USER]}, {"messages": [SYSTEM, *TURNS]}, {"messages": [SYSTEM, TURNS[2]]}),
        (CHAT, {"messages": [USER]}, {"messages": TURNS, "max_tokens": 3}, {"messages": [SYSTEM, USER]}),
        (CHAT, {"messages": [USER]}, {"messages": TURNS}, {"messages": TURNS, "tools": TOOLS}),
        (MESSAGES, {"system": "Be", "messages": [USER]}, {"system": "Be", "messages": TURNS}, {"messages": [USER]}),
        (RESPONSES, {"input": [USER]}, {"input": TURNS}, {"input": [USER], "instructions": "Be brief."}),
        (COMPLETIONS, {"prompt": "a" * BEGINNING}, {"prompt": "a" * BEGINNING + "b"}, {"prompt": "b" * BEGINNING}),
        (COMPLETIONS, {"prompt": [1, 2]}, {"prompt": [[1, 2], [3]]}, {"prompt": [1, 3]}),
        (COMPLETIONS, {"prompt": "a"}, {"prompt": ["a", "b"]}, {"prompt": ["b", "a"]}),
        (
            CHAT,
            {"messages": [USER], "prompt_cache_key": "chat 7"},
            {"messages": [SYSTEM], "prompt_cache_key": "chat 7"},
            {"messages": [USER], "prompt_cache_key": "chat 8"},
        ),
    ],
)
def test_requests_with_the_same_beginning_have_the_same_routing_key(
    path: str, first: dict[str, Any], later: dict[str, Any], other: dict[str, Any]
) -> None:
    hint = hint_for(path, **first)
    assert hint.key is not None
    assert hint_for(path, **later) == hint
    assert hint_for(path, **other).key not in (None, hint.key)


def test_billing_header_of_claude_code_does_not_change_the_routing_key() -> None:
    def hint_of_request(number: int) -> RoutingHint:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cch={number}"}
        return hint_for(MESSAGES, system=[header, {"type": "text", "text": "You are Claude Code."}], messages=[USER])

    assert hint_of_request(1) == hint_of_request(2)


def test_request_that_names_a_stored_response_is_routed_to_its_holder() -> None:
    name = new_response_id("abc12345")
    hint = RoutingHint(holder="abc12345")
    assert hint_for(RESPONSES, input="go on", previous_response_id=name) == hint
    assert [routing_hint(method, f"{RESPONSES}/{name}", b"") for method in ("GET", "DELETE")] == [hint, hint]
    assert (
        replica_of_response(new_response_id()),
        replica_of_response("resp_x"),
        new_response_id("a") == new_response_id("a"),
    ) == (None, None, False)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("GET", CHAT), ("POST", "/tokenize")])
def test_requests_that_any_replica_can_answer_have_an_empty_routing_hint(method: str, path: str) -> None:
    assert routing_hint(method, path, json.dumps({"messages": [USER]}).encode()) == RoutingHint()


@settings(max_examples=30)
@given(st.sampled_from([CHAT, COMPLETIONS, MESSAGES, RESPONSES]), st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON)
def test_routing_hint_accepts_any_invalid_body(path: str, body: Any) -> None:
    assert isinstance(routing_hint("POST", path, json.dumps(body).encode()), RoutingHint)
    assert routing_hint("POST", path, json.dumps(body).encode()[:-1]) == RoutingHint() or isinstance(body, int | float)


def test_request_whose_body_is_not_json_has_an_empty_routing_hint() -> None:
    assert [routing_hint("POST", CHAT, body) for body in (b"", b"\xff", b"[" * 10**6)] == [RoutingHint()] * 3


@given(NAMES, st.text())
def test_order_of_replicas_depends_only_on_the_key_while_slots_are_free(names: set[str], key: str) -> None:
    order = rank_replicas(key, dict.fromkeys(names, 0), 4)
    assert sorted(order) == sorted(names)
    assert rank_replicas(key, {name: i % 4 for i, name in enumerate(sorted(names))}, 4) == order


@given(NAMES, st.text())
def test_removing_a_replica_keeps_the_order_of_the_other_replicas(names: set[str], key: str) -> None:
    order = rank_replicas(key, dict.fromkeys(names, 0), 4)
    for gone in names:
        left = dict.fromkeys(names - {gone}, 0)
        assert rank_replicas(key, left, 4) == [name for name in order if name != gone]


def test_keys_are_spread_evenly_over_replicas() -> None:
    first = Counter(rank_replicas(f"key {i}", dict.fromkeys("abcd", 0), 4)[0] for i in range(400))
    assert all(70 < first[name] < 130 for name in "abcd")


def test_overloaded_replica_comes_last() -> None:
    loads = dict.fromkeys("abcd", 2)
    best, second, *_ = rank_replicas("key", loads, 4)
    assert rank_replicas("key", {**loads, best: 4}, 4)[0] == second
    assert rank_replicas("key", {**loads, best: 4}, 4)[-1] == best
    assert rank_replicas("key", {**loads, best: 3}, 4)[0] == best
    busy = dict.fromkeys("abcd", 20)  # if no slot is free, the limit is MAX_SHARE times the mean load
    assert rank_replicas("key", {**busy, best: 27}, 4)[0] == best
    assert rank_replicas("key", {**busy, best: 28}, 4)[0] == second


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 100), min_size=1), st.text(), st.integers(1, 16))
def test_best_replica_is_never_overloaded(loads: dict[str, int], key: str, places: int) -> None:
    order = rank_replicas(key, loads, places)
    assert sorted(order) == sorted(loads)
    if min(loads.values()) < places:
        assert loads[order[0]] < places
    else:
        assert loads[order[0]] < 1.25 * (sum(loads.values()) + 1) / len(loads) + 1


def test_ranking_without_replicas_is_empty() -> None:
    assert rank_replicas("key", {}, 4) == []
