"""Tests of several completions of one prompt, which is prefilled once, over a scripted context without a model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from helpers.engines import EngineHarness
from hypothesis import given
from hypothesis import strategies as st

from pymtp.errors import CancelledError, NativeError

PROMPT = [1, 2, 3, 4, 5] * 10
LONG = [3, 1, 4, 1, 5] * 60


def tokens_prefilled(harness: EngineHarness) -> int:
    return sum(n for what, _, n in harness.context.calls if what == "prefill")


@pytest.mark.parametrize("length", [50, 48, 5])  # one length is a multiple of n_ubatch
@pytest.mark.parametrize("n", [1, 2, 5])
def test_prompt_is_prefilled_once_if_all_completions_have_a_sequence(n: int, length: int) -> None:
    harness = EngineHarness(n_seq_max=5)
    requests = harness.submit_several(n, PROMPT[:length])
    harness.run()
    harness.check()
    assert tokens_prefilled(harness) == length
    assert len(harness.context.copies) == n - 1
    assert [request.completion.stats.cached_tokens for request in requests] == [0] + [length] * (n - 1)
    assert {request.completion.stats.rounds for request in requests} == {5}
    assert len({request.first_token_time for request in requests}) == 1  # all start to decode in the same step


@pytest.mark.parametrize("n_seq_max", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [3, 7, 12])
def test_prompt_is_prefilled_once_if_completions_wait_for_a_sequence(n: int, n_seq_max: int) -> None:
    harness = EngineHarness(n_seq_max=n_seq_max, cache_bytes=10**6)
    harness.submit_several(n, LONG)
    harness.run()
    harness.check()
    assert tokens_prefilled(harness) == len(LONG)


def test_prompt_is_prefilled_again_for_each_later_completion_if_there_is_no_host_memory() -> None:
    harness = EngineHarness(n_seq_max=1)
    harness.submit_several(3, LONG)
    harness.run()
    harness.check()
    assert tokens_prefilled(harness) == 3 * len(LONG)


def test_outputs_stay_the_same_after_a_cancelled_copy_of_the_prompt() -> None:
    harness = EngineHarness(n_seq_max=3)
    copy, copies = harness.context.copy, []

    def cancelled_copy(source: int, seq: int) -> None:
        copy(source, seq)
        copies.append(seq)
        if len(copies) == 1:
            raise harness.late_cancel()

    harness.context.copy = cancelled_copy  # type: ignore[method-assign]
    harness.submit_several(3, PROMPT)
    harness.run()
    harness.check()


def test_prompt_is_not_copied_to_a_sequence_that_is_being_prefilled() -> None:
    """Restart the first completion: another request gets its sequence, and the second one prefills the prompt."""
    harness = EngineHarness(n_seq_max=2, n_ctx=400)
    n_calls = 0

    def before(what: str, _seqs: Sequence[int]) -> None:
        nonlocal n_calls
        n_calls += what == "prefill"
        if n_calls == 4:
            harness.context.cancel()
            raise CancelledError("cancelled")

    requests = harness.submit_several(2, LONG)
    for request in requests:
        request.cancel_count = 10**9  # submitted after the cancel() that stopped a call
    for _ in range(3):
        harness.engine.step()
    n_calls, harness.context.before = 3, before
    harness.engine.step()
    harness.submit([7], 5, priority=-1)
    for _ in range(4):
        harness.engine.step()
    assert 0 < requests[1].n_prefilled < len(LONG)
    harness.run()
    harness.check()


@pytest.mark.parametrize("cache_prompt", [True, False])
def test_other_requests_reuse_the_prompt_only_with_cache_prompt(cache_prompt: bool) -> None:
    harness = EngineHarness(n_seq_max=4, cache_prompt=cache_prompt, cache_bytes=10**6)
    harness.submit_several(2, PROMPT)
    harness.submit_several(2, PROMPT, seed=7)
    harness.run()
    harness.check()
    harness.submit_several(2, PROMPT, seed=11)
    harness.run()
    harness.check()
    assert tokens_prefilled(harness) == (len(PROMPT) if cache_prompt else 3 * len(PROMPT))


def test_prompt_is_prefilled_again_after_a_failed_copy() -> None:
    harness = EngineHarness(n_seq_max=3)
    failed: list[str] = []

    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == "copy" and not failed:
            failed.append(what)
            raise NativeError("no memory")

    harness.context.before = before
    requests = harness.submit_several(3, PROMPT)
    harness.run()
    harness.check()
    assert [request.finish_reason for request in requests] == ["length"] * 3
    assert tokens_prefilled(harness) == 2 * len(PROMPT)


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("steps", [1, 3, 25])
def test_cancelled_completion_does_not_affect_its_group(left: int, steps: int) -> None:
    harness = EngineHarness(n_seq_max=3, n_ctx=400)
    requests = harness.submit_several(5, LONG, 30)
    for _ in range(steps):  # the test cancels during the prefill, or later
        harness.engine.step()
    harness.engine.cancel(requests[left])
    harness.run()
    harness.check()
    assert [request.finish_reason for request in requests].count("length") == 4


def test_failed_first_completion_does_not_affect_its_group() -> None:
    harness = EngineHarness(n_seq_max=3)
    failed: list[str] = []

    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == "prefill" and not failed:
            failed.append(what)
            raise NativeError("no memory")

    harness.context.before = before
    requests = harness.submit_several(3, PROMPT)
    harness.run()
    harness.check()
    assert [request.error is None for request in requests] == [False, True, True]
    assert tokens_prefilled(harness) == len(PROMPT)


def test_cancel_ends_completions_that_wait_for_their_prompt() -> None:
    harness = EngineHarness(n_seq_max=3, n_ctx=400)
    requests = harness.submit_several(5, LONG, 30)
    harness.engine.step()
    harness.context.cancel()
    harness.engine.step()
    assert [request.finish_reason for request in requests] == ["cancelled"] * 5
    assert len(harness.engine.scheduler.free) == 3
    harness.submit_several(1, LONG)
    harness.run()
    # The other four prefilled nothing, and the prefilled chunk of the first completion was reused
    assert tokens_prefilled(harness) == len(LONG)


request_plans = st.fixed_dictionaries(
    {
        "n": st.integers(1, 5),
        "prompt": st.lists(st.integers(0, 49), min_size=1, max_size=50),
        "max_tokens": st.integers(1, 20),
        "priority": st.integers(-1, 1),
    }
)


@given(
    st.lists(st.tuples(st.integers(0, 20), request_plans), min_size=1, max_size=5),
    st.integers(1, 5),
    st.sets(st.integers(0, 40)),
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=4),
)
def test_each_completion_equals_a_single_completion_with_the_same_seed(
    plan: list[tuple[int, dict[str, object]]],
    n_seq_max: int,
    cancelled_calls: set[int],
    cancels: list[tuple[int, int]],
) -> None:
    harness = EngineHarness(n_ctx=80, n_seq_max=n_seq_max, hits=[True, True, False])
    n_calls = 0

    def before(_what: str, _seqs: Sequence[int]) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls in cancelled_calls:
            raise harness.late_cancel()

    harness.context.before = before
    for step in range(40):
        for submit_at, planned in plan:
            if submit_at == step:
                harness.submit_several(**planned)  # type: ignore[arg-type]
        for cancel_at, i in cancels:
            if cancel_at == step and i < len(harness.requests):
                harness.engine.cancel(harness.requests[i])
        harness.engine.step()
    harness.context.before = lambda what, seqs: None
    harness.run()
    harness.check()
    figures = harness.engine.figures()
    assert (figures.running, figures.waiting, figures.failed) == (0, 0, 0)
    if not cancels:
        assert figures.finished == len(harness.requests)


def test_copied_prompts_do_not_count_in_the_prefill_limit_of_a_step() -> None:
    harness = EngineHarness(n_seq_max=4, n_ubatch=64)
    harness.submit_several(3, PROMPT)
    other = harness.submit([7] * 14)
    harness.engine.step()
    assert len(other.tokens) == 1
