"""Tests of moves: running requests move to sequences without gaps if that pays, over a scripted context."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Sequence

import pytest
from helpers.engines import EngineHarness
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.scheduler import COPIED_TOKENS_PER_ROUND, LOST_TOKENS_PER_ROUND
from pymtp.errors import CancelledError, NativeError


def harness_with_gaps(
    lengths: Sequence[int], prompts: Sequence[int] | None = None, *, cache_prompt: bool = False
) -> EngineHarness:
    """Run one step of requests with these numbers of output tokens left. Requests with 0 have ended, and leave gaps."""
    harness = EngineHarness(n_seq_max=len(lengths), depth=0, n_ctx=50_000, n_ubatch=100_000, cache_prompt=cache_prompt)
    for seq, n in enumerate(lengths):
        harness.submit([seq] * (prompts[seq] if prompts else 4), 1 + n or 1, seed=seq)
    harness.engine.step()
    return harness


def sequences(harness: EngineHarness) -> list[int | None]:
    """Return the sequence of each request."""
    return [request.seq for request in harness.requests]


def test_last_request_moves_into_the_gap() -> None:
    harness = harness_with_gaps([30, 0, 30, 30])
    harness.context.calls.clear()
    harness.run()
    harness.check()
    assert harness.context.copies == [(3, 1)]
    assert Counter(seqs for what, seqs, _ in harness.context.calls if what == "verify") == {(0, 1, 2): 30}


def test_smallest_possible_number_of_requests_moves_to_close_gaps() -> None:
    harness = harness_with_gaps([30, 0, 0, 30, 30, 30])
    harness.engine.step()
    assert harness.context.copies == [(0, 2)]


def test_engine_step_closes_several_gaps_at_once() -> None:
    harness = harness_with_gaps([90, 0, 90, 0, 90, 0, 90])
    harness.engine.step()
    assert sorted(seq for seq in sequences(harness) if seq is not None) in ([0, 1, 2, 3], [2, 3, 4, 5], [3, 4, 5, 6])
    assert len(harness.context.copies) == 2


def test_requests_in_adjacent_sequences_do_not_move() -> None:
    harness = harness_with_gaps([0, 30, 30, 0])
    harness.run()
    assert harness.context.copies == []


def test_ended_requests_with_a_gap_between_them_are_freed() -> None:
    harness = harness_with_gaps([2, 0, 50], [2 * COPIED_TOKENS_PER_ROUND, 4, 2 * COPIED_TOKENS_PER_ROUND])
    harness.run()
    assert harness.context.copies == []
    gone = [weakref.ref(request) for request in harness.requests]
    harness.requests.clear()
    gc.collect()
    assert not any(request() for request in gone)


@pytest.mark.parametrize("left", [[2, 0, 50], [50, 0, 2]])
def test_no_request_moves_if_one_side_of_the_gap_ends_soon(left: list[int]) -> None:
    harness = harness_with_gaps(left, [2 * COPIED_TOKENS_PER_ROUND, 4, 2 * COPIED_TOKENS_PER_ROUND])
    harness.run()
    assert harness.context.copies == []


@pytest.mark.parametrize(("rounds", "moves"), [(4, False), (8, True)])
def test_long_text_moves_only_if_many_rounds_are_left(rounds: int, moves: bool) -> None:
    harness = harness_with_gaps([50, 0, rounds], [10 * COPIED_TOKENS_PER_ROUND, 4, 4 * COPIED_TOKENS_PER_ROUND])
    harness.engine.step()
    assert harness.context.copies == ([(2, 1)] if moves else [])


@pytest.mark.parametrize("cache_prompt", [True, False])
def test_move_overwrites_a_cached_text_only_if_many_rounds_are_left(
    cache_prompt: bool,
) -> None:
    lost = 20 * LOST_TOKENS_PER_ROUND
    few, many = (harness_with_gaps([n, 0, n], [4, lost, 4], cache_prompt=cache_prompt) for n in (15, 30))
    for harness in (few, many):
        harness.run()
        harness.check()
    assert few.context.copies == ([] if cache_prompt else [(2, 1)])
    assert many.context.copies == [(2, 1)]
    assert few.context.tokens(1) == ([1] * lost if cache_prompt else few.context.tokens(1))


def test_waiting_request_gets_the_free_sequence_before_any_move() -> None:
    harness = harness_with_gaps([30, 0, 30])
    harness.submit([9] * 4, 30)
    harness.engine.step()
    assert harness.context.copies == []
    assert sequences(harness) == [0, None, 2, 1]


def test_request_moves_during_prefill() -> None:
    harness = EngineHarness(n_seq_max=3, n_ctx=2000, n_ubatch=16)
    harness.submit([1] * 4, 60)
    harness.submit([2] * 4, 1)
    long = harness.submit([3] * 600, 50)
    for _ in range(6):
        harness.engine.step()
    assert (harness.context.copies, long.decode_state) == ([(2, 1)], None)
    harness.run()
    harness.check()
    assert sum(n for what, _, n in harness.context.calls if what == "prefill") == 608


@pytest.mark.parametrize("error", [NativeError, CancelledError])
def test_request_stays_in_its_sequence_after_a_failed_move(error: type[Exception]) -> None:
    harness = harness_with_gaps([30, 0, 30])
    tried: list[str] = []

    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == "copy":
            tried.append(what)
            raise error("no memory")

    harness.context.before = before
    harness.run()
    harness.check()
    assert [request.finish_reason for request in harness.requests] == ["length"] * 3
    assert len(tried) == 1  # the move is not tried again in each step


def test_request_stays_where_it_is_after_a_cancelled_move() -> None:
    harness = harness_with_gaps([30, 0, 30])

    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == "copy":
            raise harness.late_cancel()

    harness.context.before = before
    harness.engine.step()
    harness.context.before = lambda what, seqs: None
    harness.run()
    harness.check()


def test_request_cancelled_after_a_move_frees_its_sequence() -> None:
    harness = harness_with_gaps([30, 0, 30])
    harness.engine.step()
    assert sequences(harness) == [0, None, 1]
    harness.engine.cancel(harness.requests[2])
    harness.engine.step()
    assert sequences(harness) == [0, None, None]
    later = [harness.submit([5] * 4, 10, seed=8) for _ in range(2)]
    harness.engine.step()
    assert {request.seq for request in later} == {1, 2}
    harness.run()
    harness.check()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.booleans())
def test_moves_change_no_output_and_leave_one_request_per_sequence(left: list[int], cache: bool) -> None:
    harness = harness_with_gaps(left, cache_prompt=cache)
    scheduler = harness.engine.scheduler
    while not all(request.ended for request in harness.requests):
        harness.engine.step()
        taken = [request.seq for request in scheduler.running if request.seq is not None]
        assert taken == sorted(taken)
        assert sorted([*scheduler.free, *taken]) == list(range(len(left)))
    harness.check()


@pytest.mark.parametrize(("depth", "moves"), [(0, True), (3, False)])
def test_scheduler_estimates_rounds_left_from_tokens_per_round(depth: int, moves: bool) -> None:
    harness = EngineHarness(n_seq_max=3, depth=depth, n_ubatch=500)
    for prompt, n in (([1], 61), ([2] * 20 * LOST_TOKENS_PER_ROUND, 21), ([3], 61)):
        harness.submit(prompt, n)
    harness.run()
    harness.check()
    assert harness.context.copies == ([(2, 1)] if moves else [])
