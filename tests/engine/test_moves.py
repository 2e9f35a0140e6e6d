"""Claims about sequences that lie apart: who runs moves together where that pays."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Sequence

import pytest
from helpers.engines import Bed
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.scheduler import COPIED_A_ROUND, LOST_A_ROUND
from pymtp.errors import CancelledError, NativeError


def apart(lengths: Sequence[int], prompts: Sequence[int] | None = None, *, cache_prompt: bool = False) -> Bed:
    """Requests with so many tokens left each: those with none end, and leave gaps."""
    bed = Bed(n_seq_max=len(lengths), depth=0, n_ctx=50_000, n_ubatch=100_000, cache_prompt=cache_prompt)
    for seq, n in enumerate(lengths):
        bed.submit([seq] * (prompts[seq] if prompts else 4), 1 + n or 1, seed=seq)
    bed.engine.step()
    return bed


def placed(bed: Bed) -> list[int | None]:
    """Where each request is."""
    return [request.seq for request in bed.requests]


def test_the_last_moves_into_the_gap_and_rounds_take_one_launch() -> None:
    bed = apart([30, 0, 30, 30])
    bed.context.launches.clear()
    bed.run()
    bed.check()
    assert bed.context.copies == [(3, 1)]
    assert Counter(seqs for what, seqs, _ in bed.context.launches if what == "verify") == {(0, 1, 2): 30}


def test_as_few_move_as_have_to() -> None:
    bed = apart([30, 0, 0, 30, 30, 30])
    bed.engine.step()
    assert bed.context.copies == [(0, 2)]


def test_several_move_at_once() -> None:
    bed = apart([90, 0, 90, 0, 90, 0, 90])
    bed.engine.step()
    assert sorted(seq for seq in placed(bed) if seq is not None) in ([0, 1, 2, 3], [2, 3, 4, 5], [3, 4, 5, 6])
    assert len(bed.context.copies) == 2


def test_those_who_lie_side_by_side_stay() -> None:
    bed = apart([0, 30, 30, 0])
    bed.run()
    assert bed.context.copies == []


def test_those_who_stayed_apart_are_let_go_of_when_they_end() -> None:
    bed = apart([2, 0, 50], [2 * COPIED_A_ROUND, 4, 2 * COPIED_A_ROUND])
    bed.run()
    assert bed.context.copies == []
    gone = [weakref.ref(request) for request in bed.requests]
    bed.requests.clear()
    gc.collect()
    assert not any(request() for request in gone)


@pytest.mark.parametrize("left", [[2, 0, 50], [50, 0, 2]])
def test_nobody_moves_where_one_side_ends_soon(left: list[int]) -> None:
    bed = apart(left, [2 * COPIED_A_ROUND, 4, 2 * COPIED_A_ROUND])
    bed.run()
    assert bed.context.copies == []


@pytest.mark.parametrize(("rounds", "moves"), [(4, False), (8, True)])
def test_a_longer_text_moves_where_more_rounds_are_left(rounds: int, moves: bool) -> None:
    bed = apart([50, 0, rounds], [10 * COPIED_A_ROUND, 4, 4 * COPIED_A_ROUND])
    bed.engine.step()
    assert bed.context.copies == ([(2, 1)] if moves else [])


@pytest.mark.parametrize("cache_prompt", [True, False])
def test_a_text_that_can_be_gone_on_from_is_lost_only_for_more_rounds_than_reading_it_takes(
    cache_prompt: bool,
) -> None:
    lost = 20 * LOST_A_ROUND
    few, many = (apart([n, 0, n], [4, lost, 4], cache_prompt=cache_prompt) for n in (15, 30))
    for bed in (few, many):
        bed.run()
        bed.check()
    assert few.context.copies == ([] if cache_prompt else [(2, 1)])
    assert many.context.copies == [(2, 1)]
    assert few.context.tokens(1) == ([1] * lost if cache_prompt else few.context.tokens(1))


def test_who_waits_gets_the_place_before_anybody_moves() -> None:
    bed = apart([30, 0, 30])
    bed.submit([9] * 4, 30)
    bed.engine.step()
    assert bed.context.copies == []
    assert placed(bed) == [0, None, 2, 1]


def test_a_prompt_that_is_half_read_moves_as_well() -> None:
    bed = Bed(n_seq_max=3, n_ctx=2000, n_ubatch=16)
    bed.submit([1] * 4, 60)
    bed.submit([2] * 4, 1)
    reader = bed.submit([3] * 600, 50)
    for _ in range(6):
        bed.engine.step()
    assert (bed.context.copies, reader.writer) == ([(2, 1)], None)
    bed.run()
    bed.check()
    assert sum(n for what, _, n in bed.context.launches if what == "prefill") == 608


@pytest.mark.parametrize("error", [NativeError, CancelledError])
def test_a_request_whose_move_fails_goes_on_where_it_is(error: type[Exception]) -> None:
    bed = apart([30, 0, 30])
    tried: list[str] = []

    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == "copy":
            tried.append(what)
            raise error("no memory")

    bed.context.before = before
    bed.run()
    bed.check()
    assert [request.reason for request in bed.requests] == ["length"] * 3
    assert len(tried) == 1  # not again in each step


def test_a_move_that_a_handler_breaks_off_begins_anew_and_writes_the_same() -> None:
    bed = apart([30, 0, 30])

    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == "copy":
            raise KeyboardInterrupt

    bed.context.before = before
    with pytest.raises(KeyboardInterrupt):
        bed.engine.step()
    bed.context.before = lambda what, seqs: None
    bed.run()
    bed.check()


def test_a_request_that_is_cancelled_after_it_moved_leaves_its_place() -> None:
    bed = apart([30, 0, 30])
    bed.engine.step()
    assert placed(bed) == [0, None, 1]
    bed.engine.cancel(bed.requests[2])
    bed.engine.step()
    assert placed(bed) == [0, None, None]
    later = [bed.submit([5] * 4, 10, seed=8) for _ in range(2)]
    bed.engine.step()
    assert {request.seq for request in later} == {1, 2}
    bed.run()
    bed.check()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.booleans())
def test_wherever_gaps_open_each_text_stays_and_each_sequence_is_of_one_request(left: list[int], cache: bool) -> None:
    bed = apart(left, cache_prompt=cache)
    scheduler = bed.engine._scheduler
    while not all(request.ended for request in bed.requests):
        bed.engine.step()
        taken = [request.seq for request in scheduler.running if request.seq is not None]
        assert taken == sorted(taken)
        assert sorted([*scheduler.free, *taken]) == list(range(len(left)))
    bed.check()


@pytest.mark.parametrize(("depth", "moves"), [(0, True), (3, False)])
def test_tokens_left_are_fewer_rounds_where_a_round_brings_several(depth: int, moves: bool) -> None:
    bed = Bed(n_seq_max=3, depth=depth, n_ubatch=500)
    for prompt, n in (([1], 61), ([2] * 20 * LOST_A_ROUND, 21), ([3], 61)):
        bed.submit(prompt, n)
    bed.run()
    bed.check()
    assert bed.context.copies == ([(2, 1)] if moves else [])
