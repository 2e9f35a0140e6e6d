"""Claims about where requests are led: turns of a chat to one replica, chats to all of them, nobody to a full one."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymtp.ray.lead import BEGINNING, Lead, lead_of, ranked
from pymtp.server.responses.ids import new_id, replica_of

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


def led(path: str, **body: Any) -> Lead:
    return lead_of("POST", path, json.dumps(body).encode())


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
def test_prompts_that_begin_alike_are_led_alike_and_others_are_not(
    path: str, first: dict[str, Any], later: dict[str, Any], other: dict[str, Any]
) -> None:
    lead = led(path, **first)
    assert lead.key is not None
    assert led(path, **later) == lead
    assert led(path, **other).key not in (None, lead.key)


def test_what_claude_code_sends_anew_each_time_leads_nowhere_else() -> None:
    def asked(number: int) -> Lead:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cch={number}"}
        return led(MESSAGES, system=[header, {"type": "text", "text": "You are Claude Code."}], messages=[USER])

    assert asked(1) == asked(2)


def test_a_stored_response_leads_to_the_replica_that_keeps_it() -> None:
    name = new_id("abc12345")
    held = Lead(holder="abc12345")
    assert led(RESPONSES, input="go on", previous_response_id=name) == held
    assert [lead_of(method, f"{RESPONSES}/{name}", b"") for method in ("GET", "DELETE")] == [held, held]
    assert (replica_of(new_id()), replica_of("resp_x"), new_id("a") == new_id("a")) == (None, None, False)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("GET", CHAT), ("POST", "/tokenize")])
def test_other_requests_are_led_nowhere(method: str, path: str) -> None:
    assert lead_of(method, path, json.dumps({"messages": [USER]}).encode()) == Lead()


@settings(max_examples=30)
@given(st.sampled_from([CHAT, COMPLETIONS, MESSAGES, RESPONSES]), st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON)
def test_a_body_that_is_wrong_is_led_anywhere(path: str, body: Any) -> None:
    assert isinstance(lead_of("POST", path, json.dumps(body).encode()), Lead)
    assert lead_of("POST", path, json.dumps(body).encode()[:-1]) == Lead() or isinstance(body, int | float)


def test_a_body_that_cannot_be_read_is_led_anywhere() -> None:
    assert [lead_of("POST", CHAT, body) for body in (b"", b"\xff", b"[" * 10**6)] == [Lead()] * 3


@given(NAMES, st.text())
def test_with_little_to_do_the_order_is_that_of_the_key_alone(names: set[str], key: str) -> None:
    order = ranked(key, dict.fromkeys(names, 0), 4)
    assert sorted(order) == sorted(names)
    assert ranked(key, {name: i % 4 for i, name in enumerate(sorted(names))}, 4) == order


@given(NAMES, st.text())
def test_a_replica_that_goes_changes_nothing_between_the_others(names: set[str], key: str) -> None:
    order = ranked(key, dict.fromkeys(names, 0), 4)
    for gone in names:
        left = dict.fromkeys(names - {gone}, 0)
        assert ranked(key, left, 4) == [name for name in order if name != gone]


def test_keys_are_spread() -> None:
    first = Counter(ranked(f"key {i}", dict.fromkeys("abcd", 0), 4)[0] for i in range(400))
    assert all(70 < first[name] < 130 for name in "abcd")


def test_who_has_more_than_its_share_comes_last() -> None:
    loads = dict.fromkeys("abcd", 2)
    best, second, *_ = ranked("key", loads, 4)
    assert ranked("key", {**loads, best: 4}, 4)[0] == second
    assert ranked("key", {**loads, best: 4}, 4)[-1] == best
    assert ranked("key", {**loads, best: 3}, 4)[0] == best
    busy = dict.fromkeys("abcd", 20)  # all write as many as they can: who waits least is no worse than who knows more
    assert ranked("key", {**busy, best: 27}, 4)[0] == best
    assert ranked("key", {**busy, best: 28}, 4)[0] == second


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 100), min_size=1), st.text(), st.integers(1, 16))
def test_who_has_too_much_to_do_is_never_first_and_one_always_is(loads: dict[str, int], key: str, places: int) -> None:
    order = ranked(key, loads, places)
    assert sorted(order) == sorted(loads)
    if min(loads.values()) < places:
        assert loads[order[0]] < places
    else:
        assert loads[order[0]] < 1.25 * (sum(loads.values()) + 1) / len(loads) + 1


def test_where_there_are_no_replicas_none_is_named() -> None:
    assert ranked("key", {}, 4) == []
