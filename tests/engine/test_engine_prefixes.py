"""Tests of the engine with its prefix cache: prompts reuse earlier prompts, over a scripted context without a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest
from helpers.engines import EngineHarness
from helpers.holding import check_prefix_cache
from helpers.interrupts import ErrorAtLine
from hypothesis import given
from hypothesis import strategies as st

from pymtp.errors import CancelledError, NativeError

CACHE_BYTES = 10**6


def text(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(50), k=n)


DOCUMENT = text(0, 200)


def tokens_prefilled(harness: EngineHarness) -> int:
    return harness.engine.figures().read


def run_request(harness: EngineHarness, prompt: list[int], max_tokens: int = 10, *, again: bool = False) -> int:
    """Run one request to its end, and return the number of prompt tokens that were prefilled.

    again: whether the request says that its whole prompt is expected again.
    """
    before = tokens_prefilled(harness)
    request = harness.submit(prompt, max_tokens, branch_points=(len(prompt),) if again else ())
    harness.run()
    harness.check()
    check_prefix_cache(harness.engine)
    n = tokens_prefilled(harness) - before
    assert request.completion.stats.cached_tokens == len(prompt) - n
    return n


@pytest.mark.parametrize("cache_bytes", [0, CACHE_BYTES])
def test_prompt_continues_from_an_earlier_prompt_and_its_output(cache_bytes: int) -> None:
    harness = EngineHarness(cache_bytes=cache_bytes)
    run_request(harness, DOCUMENT)
    output = harness.requests[0].tokens
    # The sequence does not hold the last output token
    assert run_request(harness, [*DOCUMENT, *output, *text(1, 30)]) == 1 + 30


def test_prompt_of_an_evicted_sequence_is_restored_from_host_memory() -> None:
    harness = EngineHarness(cache_bytes=CACHE_BYTES)
    run_request(harness, DOCUMENT, again=True)
    output = harness.requests[0].tokens
    assert run_request(harness, text(5, 300)) == 300
    assert run_request(harness, [*DOCUMENT, *output]) == 1
    assert harness.engine.figures().prefixes.loaded == 209


def test_prompt_of_an_evicted_sequence_is_prefilled_again_if_there_is_no_host_memory() -> None:
    harness = EngineHarness()
    run_request(harness, DOCUMENT)
    run_request(harness, text(5, 300))
    assert run_request(harness, DOCUMENT) == 200


def test_requests_reuse_no_tokens_with_cache_prompt_false() -> None:
    harness = EngineHarness(cache_prompt=False, cache_bytes=CACHE_BYTES, n_seq_max=2)
    prompt = DOCUMENT
    for _ in range(3):
        requests = [harness.submit(prompt, seed=i) for i in range(2)]
        harness.run()
        assert {request.completion.stats.cached_tokens for request in requests} == {0}
        prompt = prompt + requests[0].tokens
    assert harness.engine.figures().prefixes.nbytes == 0


@pytest.mark.parametrize("cache_bytes", [0, CACHE_BYTES])
def test_concurrent_prompts_prefill_their_shared_prefix_once(cache_bytes: int) -> None:
    harness = EngineHarness(n_seq_max=4, cache_bytes=cache_bytes)
    for i in range(4):
        harness.submit([*DOCUMENT, i, *text(i, 9)], 30, seed=i)
    harness.run()
    harness.check()
    check_prefix_cache(harness.engine)
    assert tokens_prefilled(harness) == 200 + 4 * 10


def test_prefilled_part_of_a_cancelled_prompt_is_reused() -> None:
    harness = EngineHarness(n_ctx=2000)
    cancelled = harness.submit(text(3, 640))
    for _ in range(10):
        harness.engine.step()
    harness.engine.cancel(cancelled)
    assert 100 <= (n := cancelled.n_prefilled) < 640
    assert run_request(harness, text(3, 640)) == 640 - n


def test_prompt_of_a_preempted_stream_is_not_prefilled_again_if_its_end_has_a_checkpoint() -> None:
    harness = EngineHarness(n_ctx=1000, cache_bytes=CACHE_BYTES)
    slow = harness.submit(text(3, 300), 50, max_unread=1, branch_points=(300,))
    while not slow.paused:
        harness.engine.step()
    assert run_request(harness, text(4, 300)) == 300
    assert slow.preempted
    assert tokens_prefilled(harness) == 600


def test_prompt_is_prefilled_if_loading_its_cached_state_fails() -> None:
    harness = EngineHarness(cache_bytes=CACHE_BYTES)
    run_request(harness, DOCUMENT, again=True)
    run_request(harness, text(5, 300))
    harness.context.before = failing_call("load_state", NativeError("no memory"))
    assert run_request(harness, DOCUMENT + harness.requests[0].tokens) == 210
    harness.context.before = lambda what, seqs: None
    run_request(harness, text(6, 300))
    assert run_request(harness, DOCUMENT + harness.requests[0].tokens) == 1


def test_request_restarts_if_a_failed_copy_empties_its_sequence() -> None:
    harness = EngineHarness(n_seq_max=2, cache_bytes=CACHE_BYTES, n_ctx=2000)
    first = harness.submit([*DOCUMENT, *text(1, 300)], 100)
    while len(first.tokens) < 20:
        harness.engine.step()
    failing = True

    def before(what: str, seqs: Sequence[int]) -> None:
        nonlocal failing
        if what == "copy_cells" and failing:
            failing = False
            harness.context.clear(seqs[0])
            raise NativeError("no memory")

    harness.context.before = before
    harness.submit([*DOCUMENT, *text(1, 290), *text(2, 30)], 10, seed=1)
    harness.run()
    harness.check()
    check_prefix_cache(harness.engine)
    assert not failing
    assert [request.finish_reason for request in harness.requests] == ["length"] * 2


def test_failed_checkpoint_does_not_fail_the_request() -> None:
    harness = EngineHarness(cache_bytes=CACHE_BYTES)
    harness.context.before = failing_call("save_state", NativeError("no memory"))
    assert run_request(harness, text(1, 300)) == 300
    assert harness.engine.figures().prefixes.checkpoints == 0


def test_cached_tokens_of_a_moved_request_are_reused() -> None:
    harness = EngineHarness(n_seq_max=3, cache_bytes=CACHE_BYTES, n_ctx=2000)
    harness.submit(text(1, 20), 60)
    harness.submit(text(2, 20), 1)
    moving = harness.submit(text(3, 600), 50)
    while moving.seq != 1:
        harness.engine.step()
        check_prefix_cache(harness.engine)
    harness.run()
    harness.check()
    assert run_request(harness, text(3, 600)) == 88  # the request continues after the last whole ubatch


def failing_call(call: str, error: Exception):
    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == call:
            raise error

    return before


# ── Random failures ───────────────────────────────────────────────────────────────────────────────────────────────────

prompt = st.builds(
    lambda trunk, n, own, m: text(trunk, n) + text(own, m),
    st.integers(0, 2),
    st.sampled_from([0, 70, 130, 200]),
    st.integers(10, 14),
    st.integers(1, 100),
)
request_plans = st.fixed_dictionaries(
    {
        "prompt": prompt,
        "max_tokens": st.integers(1, 30),
        "seed": st.integers(0, 2),
        "priority": st.integers(-1, 1),
        "max_unread": st.sampled_from([None, None, 1]),
    },
    optional={"branch_points": st.tuples(st.integers(1, 200))},
)
faults = st.dictionaries(
    st.integers(0, 150), st.sampled_from(["late cancel", "cancel", "broken", "emptied"]), max_size=6
)


@given(
    st.lists(st.tuples(st.integers(0, 30), request_plans), min_size=1, max_size=10),
    st.integers(1, 4),
    st.sampled_from([0, 100, 400, 1500, CACHE_BYTES]),
    st.booleans(),
    faults,
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4),
)
def test_outputs_and_cache_records_stay_right_after_random_failures(
    plan: list[tuple[int, dict[str, object]]],
    n_seq_max: int,
    cache_bytes: int,
    cache_prompt: bool,
    faults: dict[int, str],
    cancels: list[tuple[int, int]],
) -> None:
    harness = EngineHarness(
        n_ctx=400,
        n_seq_max=n_seq_max,
        n_ubatch=64,
        hits=[True, True, False],
        cache_bytes=cache_bytes,
        cache_prompt=cache_prompt,
    )
    calls = 0

    def before(what: str, seqs: Sequence[int]) -> None:
        nonlocal calls
        calls += 1
        match faults.get(calls):
            case "late cancel":
                raise harness.late_cancel()
            case "cancel":
                harness.context.cancel()
                raise CancelledError("cancelled")
            case "broken":
                raise NativeError("broken")
            case "emptied":  # a failed save or copy may empty the sequence that it reads
                harness.context.clear(seqs[0])
                raise NativeError("broken")

    harness.context.before = before
    for step in range(60):
        for submit_at, planned in plan:
            if submit_at == step:
                harness.submit(**planned)  # type: ignore[arg-type]
        for cancel_at, i in cancels:
            if cancel_at == step and i < len(harness.requests):
                harness.engine.cancel(harness.requests[i])
        harness.engine.step()
        check_prefix_cache(harness.engine)
        for request in harness.requests[::2]:
            request.unread.clear()
    harness.context.before = lambda what, seqs: None
    harness.run()
    harness.check()
    check_prefix_cache(harness.engine)
    assert sorted(harness.engine.scheduler.free) == list(range(n_seq_max))


def make_harness() -> EngineHarness:
    harness = EngineHarness(n_seq_max=2, depth=2, cache_bytes=1500, n_ctx=400)
    for i in range(4):
        harness.submit(DOCUMENT[: 90 + 20 * (i % 2)] + text(i, 80), 5, seed=i)
    return harness


def fails_at(harness: EngineHarness, line: int, *files: str) -> bool:
    """Run out of memory before the engine's line-th line, and check the cache. Return False if it ended before that."""
    failed = True
    with suppress(MemoryError), ErrorAtLine(line, MemoryError, *(files or ("/pymtp/engine/", "/pymtp/prefix_cache/"))):
        harness.run()
        failed = False
    if failed:
        harness.engine.fail_all(NativeError("on purpose"))
        assert all(request.ended for request in harness.requests)
        check_prefix_cache(harness.engine)
    return failed


@pytest.mark.parametrize("first", [0, 100, 200])
def test_prefix_cache_agrees_with_the_context_after_an_unexpected_error_at_any_line(first: int) -> None:
    line = first
    while fails_at(harness := make_harness(), line):
        prompts = [request.prompt for request in harness.requests]
        harness.requests.clear()
        for prompt in prompts:
            harness.submit(prompt, 5, seed=9)
        harness.run()
        harness.check()
        check_prefix_cache(harness.engine)
        line += 499


def test_prefix_cache_is_consistent_after_a_failed_change_of_the_radix_tree() -> None:
    line = 0
    while fails_at(harness := make_harness(), line, "/pymtp/prefix_cache/tree"):
        harness.requests.clear()
        harness.submit(DOCUMENT[:90], 5, seed=9)
        harness.run()
        harness.check()
        check_prefix_cache(harness.engine)
        line += 31


def test_unexpected_error_keeps_cached_prefixes() -> None:
    harness = EngineHarness(cache_bytes=CACHE_BYTES)
    for prompt in (DOCUMENT, text(5, 150)):
        run_request(harness, prompt, again=True)
    harness.submit(text(6, 50), 20)
    harness.context.before = failing_call("verify", MemoryError())  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        harness.run()
    harness.engine.fail_all(NativeError("on purpose"))
    harness.context.before = lambda what, seqs: None
    for request in harness.requests[:2]:
        assert run_request(harness, request.prompt + request.tokens) == 1
