"""Tests of turns: sequences are given to clients in turn, then to their calls, and prompts are prepared in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.engines import EngineHarness

from pymtp.engine.preparers import LONG_BYTES, Preparers
from pymtp.engine.request import Caller, Request, current_caller
from pymtp.errors import CancelledError

LONG = 60


def order(harness: EngineHarness, names: dict[Request, str]) -> str:
    """Run all requests, and return their names in the order in which they got a sequence."""
    harness.run()
    harness.check()
    return "".join(names[request] for request in sorted(names, key=lambda request: request.turn))


def submit(harness: EngineHarness, names: str, n_tokens: int = 5, **keywords: Any) -> dict[Request, str]:
    """Submit a request for each name: a client has the first letter's name, and a call the letter's case."""
    calls = {name: Caller(name.lower(), call=name) for name in names}
    return {
        harness.submit([1, 2, 3, i], n_tokens, caller=calls[name], **keywords): name for i, name in enumerate(names)
    }


def test_clients_get_sequences_in_turn() -> None:
    harness = EngineHarness(n_seq_max=1)
    assert order(harness, submit(harness, "aaaaaabbc")) == "abcabaaaa"


def test_calls_of_a_client_get_sequences_in_turn() -> None:
    harness = EngineHarness(n_seq_max=1)
    assert order(harness, submit(harness, "aaaaaAAb")) == "abAaAaaa"


def test_client_with_fewest_running_requests_comes_first() -> None:
    harness = EngineHarness(n_seq_max=4)
    first = submit(harness, "aaaa", 100)
    harness.engine.step()
    names = first | submit(harness, "aaaa", 100) | submit(harness, "bb", 100)
    for request in list(first)[:3]:  # three of the sequences of "a" become free, one after the other
        harness.engine.cancel(request)
        harness.engine.step()
    assert order(harness, names).startswith("aaaabb")


def test_priority_comes_before_turns() -> None:
    harness = EngineHarness(n_seq_max=1)
    names = submit(harness, "aa") | submit(harness, "bb", priority=-1)
    assert order(harness, names) == "bbaa"


def test_request_that_lost_its_sequence_keeps_its_place() -> None:
    harness = EngineHarness(n_seq_max=1)
    names = submit(harness, "aabb", 30)
    harness.engine.step()
    (running,) = harness.engine.scheduler.running
    harness.engine.runner.run_guarded([running], lambda: (_ for _ in ()).throw(harness.late_cancel()))
    assert running.seq is None
    harness.context.cancelled = False
    harness.engine._admit()
    assert harness.engine.scheduler.running == [running]
    assert order(harness, names) == "abab"


def test_many_calls_of_one_client_run_in_their_order() -> None:
    harness = EngineHarness(n_seq_max=2)
    requests = [harness.submit([1, 2, i], 5, caller=Caller(call=object())) for i in range(20)]
    harness.run()
    assert sorted(requests, key=lambda request: request.turn) == requests


def prefills(*prompts: tuple[str, int]) -> str:
    """Prefill prompts of clients with these numbers of ubatches. Return whose ubatches were prefilled in which order.

    The last ubatch of each prompt is in upper case.
    """
    harness, requests, done = EngineHarness(n_seq_max=8, n_ctx=8192, n_ubatch=64), list[Request](), ""
    for i, (client, n) in enumerate(prompts):
        requests.append(harness.submit([i + 9] * (64 * n), 1, caller=Caller(client)))
    before = {request: 0 for request in requests}
    while not all(request.ended for request in requests):
        harness.engine.step()
        for request, (client, n) in zip(requests, prompts, strict=True):
            n_prefilled = 64 * n if request.tokens else request.n_prefilled
            if n_prefilled > before[request]:
                before[request] = n_prefilled
                done += client.upper() if request.tokens else client
    harness.check()
    return done


def test_short_prompt_waits_for_its_own_length_of_another_clients_long_one() -> None:
    assert prefills(("a", 9), ("b", 3)).index("B") <= 5
    assert prefills(("a", 9), ("a", 9), ("b", 1)).index("B") <= 1


def test_long_prompt_goes_on_beside_short_ones() -> None:
    done = prefills(("a", 9), *((client, 4) for client in "bcdef"))
    assert done[:18].count("a") >= 8


def test_prompts_of_one_client_or_of_one_length_are_prefilled_one_after_the_other() -> None:
    assert prefills(("a", 5), ("a", 2)) == "aaaaAaA"
    assert prefills(("a", 5), ("b", 5)) == "aaaaAbbbbB"


@pytest.fixture
def preparers() -> Iterator[Preparers]:
    threads = Preparers(2, "test")
    yield threads
    threads.shutdown()


def prepare(threads: Preparers, client: str, call: Any, n_bytes: int = 0, has_images: bool = False) -> Any:
    token = current_caller.set(Caller(client, n_bytes=n_bytes, has_images=has_images))
    try:
        return threads.submit(call)
    finally:
        current_caller.reset(token)


def test_prompts_of_clients_are_prepared_in_turn(preparers: Preparers) -> None:
    go_on, done = threading.Event(), list[str]()
    blocked = [prepare(preparers, "z", lambda: go_on.wait(LONG)) for _ in range(2)]
    lock = threading.Lock()

    def note(name: str) -> None:
        with lock:
            done.append(name)

    calls = [prepare(preparers, name, lambda name=name: note(name)) for name in "aaaaaab"]
    go_on.set()
    for call in (*blocked, *calls):
        call.result(LONG)
    assert "b" in done[:4]  # with two threads, two calls may change places


@pytest.mark.parametrize("given", [{"n_bytes": LONG_BYTES + 1}, {"has_images": True}], ids=str)
def test_long_calls_leave_a_thread_for_short_ones(preparers: Preparers, given: dict[str, Any]) -> None:
    go_on = threading.Event()
    long = [prepare(preparers, str(i), lambda: go_on.wait(LONG), **given) for i in range(3)]
    try:
        assert prepare(preparers, "short", lambda: 7).result(LONG) == 7
    finally:
        go_on.set()
    assert all(call.result(LONG) for call in long)


def test_call_that_is_cancelled_before_it_begins_is_dropped(preparers: Preparers) -> None:
    go_on, made = threading.Event(), list[int]()
    blocked = [prepare(preparers, "a", lambda: go_on.wait(LONG)) for _ in range(2)]
    dropped = prepare(preparers, "a", lambda: made.append(1))
    assert dropped.cancel()
    go_on.set()
    assert all(call.result(LONG) for call in blocked)
    assert prepare(preparers, "a", lambda: "next").result(LONG) == "next"
    assert made == []


def test_error_of_a_call_is_raised_by_its_future(preparers: Preparers) -> None:
    def fails() -> None:
        raise CancelledError("on purpose")

    with pytest.raises(CancelledError, match="on purpose"):
        prepare(preparers, "a", fails).result(LONG)
