"""Claims about several completions of one prompt, over a scripted context: the prompt is read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from helpers.engines import Bed
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine import scheduler
from pymtp.errors import CancelledError, NativeError

PROMPT = [1, 2, 3, 4, 5] * 10
LONG = [3, 1, 4, 1, 5] * 60


@pytest.fixture(autouse=True, scope="module")
def short_prompts_are_kept() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "KEPT_PROMPT", 20)
        yield


def tokens_read(bed: Bed) -> int:
    return sum(n for what, _, n in bed.context.launches if what == "prefill")


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_prompt_is_read_once_where_all_completions_have_a_place(n: int) -> None:
    bed = Bed(n_seq_max=5)
    requests = bed.submit_several(n, PROMPT)
    bed.run()
    bed.check()
    assert tokens_read(bed) == len(PROMPT)
    assert len(bed.context.copies) == n - 1
    assert [request.completion.stats.cached_tokens for request in requests] == [0] + [len(PROMPT)] * (n - 1)
    assert {request.completion.stats.rounds for request in requests} == {5}
    assert len({request.prefilled for request in requests}) == 1  # and all begin at once


@pytest.mark.parametrize("n_seq_max", [2, 3, 4])
@pytest.mark.parametrize("n", [3, 7, 12])
def test_a_prompt_is_read_once_where_completions_wait_for_a_place(n: int, n_seq_max: int) -> None:
    bed = Bed(n_seq_max=n_seq_max)
    bed.submit_several(n, PROMPT)
    bed.run()
    bed.check()
    assert tokens_read(bed) == len(PROMPT)


def test_with_one_place_the_prompt_is_read_for_each() -> None:
    bed = Bed(n_seq_max=1)
    bed.submit_several(3, PROMPT)
    bed.run()
    bed.check()
    assert tokens_read(bed) == 3 * len(PROMPT)


def test_a_short_prompt_keeps_no_place_from_writing() -> None:
    bed = Bed(n_seq_max=3)
    bed.submit_several(6, PROMPT[:19])
    bed.run()
    bed.check()
    assert bed.engine.figures().sequences[3] >= 5
    assert tokens_read(bed) > 19


def test_the_place_that_is_kept_is_the_last_ones_and_it_writes_once_nobody_waits() -> None:
    bed = Bed(n_seq_max=3, n_ubatch=64)
    requests = bed.submit_several(4, PROMPT, 10)
    bed.engine.step()
    assert [bool(request.tokens) for request in requests] == [True, True, False, False]
    while not requests[0].ended:
        bed.engine.step()
    assert not requests[2].tokens
    bed.engine.step()
    assert [bool(request.tokens) for request in requests] == [True] * 4


def test_who_comes_first_in_the_queue_gets_the_place_that_is_kept_for_others() -> None:
    bed = Bed(n_seq_max=2, n_ubatch=64)
    requests = bed.submit_several(3, PROMPT, 100)
    bed.engine.step()
    assert not requests[1].tokens
    bed.submit([7] * 5, priority=-1)
    for _ in range(2):
        bed.engine.step()
    assert requests[1].tokens  # it would only stand in the way
    bed.run()
    bed.check()


@pytest.mark.parametrize("ahead", [None, 1])
def test_a_kept_place_waits_for_its_own_family_alone(ahead: int | None) -> None:
    """Not for long texts of others, nor for streams that nobody reads."""
    bed = Bed(n_seq_max=3, n_ubatch=64, n_ctx=400)

    def begin_another() -> None:
        bed.submit([7] * 5, None, ahead=ahead, priority=-1)

    begin_another()
    requests = bed.submit_several(3, PROMPT)
    while not requests[0].ended:
        bed.engine.step()
    assert not requests[1].tokens  # it is kept
    begin_another()  # and takes the place of the first
    for _ in range(30):
        bed.engine.step()
    assert all(request.ended for request in requests)
    assert not any(request.ended for request in bed.requests if request not in requests)


def test_a_signal_after_a_copy_leaves_the_copy_as_it_was_alone() -> None:
    bed = Bed(n_seq_max=3)
    copy, copies = bed.context.copy, []

    def stopped(source: int, seq: int) -> None:
        copy(source, seq)
        copies.append(seq)
        if len(copies) == 1:
            raise KeyboardInterrupt

    bed.context.copy = stopped  # type: ignore[method-assign]
    bed.submit_several(3, PROMPT)
    with pytest.raises(KeyboardInterrupt):
        bed.run()
    bed.run()
    bed.check()


def test_a_prompt_that_is_half_read_is_not_copied_onto() -> None:
    """The first begins anew while another has its place, and the second reads meanwhile."""
    bed = Bed(n_seq_max=2, n_ctx=400)
    launches = 0

    def before(what: str, _seqs: Sequence[int]) -> None:
        nonlocal launches
        launches += what == "prefill"
        if launches == 4:
            bed.context.cancel()
            raise CancelledError("cancelled")

    requests = bed.submit_several(2, LONG)
    for request in requests:
        request.cancels = 10**9  # they came after the cancel that stopped a launch
    for _ in range(3):
        bed.engine.step()
    launches, bed.context.before = 3, before
    bed.engine.step()
    bed.submit([7], 5, priority=-1)
    for _ in range(4):
        bed.engine.step()
    assert 0 < requests[1].n_read < len(LONG)
    bed.run()
    bed.check()


def test_siblings_are_no_others_with_the_same_prompt() -> None:
    bed = Bed(n_seq_max=4)
    bed.submit_several(2, PROMPT)
    bed.submit_several(2, PROMPT, seed=7)
    bed.run()
    bed.check()
    assert tokens_read(bed) == 2 * len(PROMPT)


@pytest.mark.parametrize("error", [NativeError, CancelledError])
def test_where_a_copy_fails_the_prompt_is_read_again(error: type[Exception]) -> None:
    bed = Bed(n_seq_max=3)
    failed: list[str] = []

    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == "copy" and not failed:
            failed.append(what)
            raise error("no memory")

    bed.context.before = before
    requests = bed.submit_several(3, PROMPT)
    bed.run()
    bed.check()
    assert [request.reason for request in requests] == ["length"] * 3
    assert tokens_read(bed) == 2 * len(PROMPT)


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("steps", [1, 3, 25])
def test_a_completion_that_is_cancelled_leaves_its_siblings(left: int, steps: int) -> None:
    bed = Bed(n_seq_max=3, n_ctx=400)
    requests = bed.submit_several(5, LONG, 30)
    for _ in range(steps):  # while the prompt is read, and later
        bed.engine.step()
    bed.engine.cancel(requests[left])
    bed.run()
    bed.check()
    assert [request.reason for request in requests].count("length") == 4


def test_a_leader_that_fails_leaves_its_siblings() -> None:
    bed = Bed(n_seq_max=3)
    failed: list[str] = []

    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == "prefill" and not failed:
            failed.append(what)
            raise NativeError("no memory")

    bed.context.before = before
    requests = bed.submit_several(3, PROMPT)
    bed.run()
    bed.check()
    assert [request.error is None for request in requests] == [False, True, True]
    assert tokens_read(bed) == len(PROMPT)


def test_cancelling_all_ends_those_that_wait_for_their_prompt_too() -> None:
    bed = Bed(n_seq_max=3, n_ctx=400)
    requests = bed.submit_several(5, LONG, 30)
    bed.engine.step()
    bed.context.cancel()
    bed.engine.step()
    assert [request.reason for request in requests] == ["cancelled"] * 5
    assert bed.context.tokens_of == [[]] * 3


wishes = st.fixed_dictionaries(
    {
        "n": st.integers(1, 5),
        "prompt": st.lists(st.integers(0, 49), min_size=1, max_size=50),
        "max_tokens": st.integers(1, 20),
        "priority": st.integers(-1, 1),
    }
)


@given(
    st.lists(st.tuples(st.integers(0, 20), wishes), min_size=1, max_size=5),
    st.integers(1, 5),
    st.sets(st.integers(0, 40)),
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=4),
)
def test_whoever_comes_and_goes_each_completion_is_that_of_its_seed_alone(
    plan: list[tuple[int, dict[str, object]]],
    n_seq_max: int,
    interrupted: set[int],
    cancels: list[tuple[int, int]],
) -> None:
    bed = Bed(n_ctx=80, n_seq_max=n_seq_max, hits=[True, True, False])
    launches = 0

    def before(_what: str, _seqs: Sequence[int]) -> None:
        nonlocal launches
        launches += 1
        if launches in interrupted:
            raise KeyboardInterrupt

    bed.context.before = before
    for step in range(40):
        for arrives, wish in plan:
            if arrives == step:
                bed.submit_several(**wish)  # type: ignore[arg-type]
        for leaves, i in cancels:
            if leaves == step and i < len(bed.requests):
                bed.engine.cancel(bed.requests[i])
        with suppress(KeyboardInterrupt):
            bed.engine.step()
    bed.context.before = lambda what, seqs: None
    bed.run()
    bed.check()
    figures = bed.engine.figures()
    assert (figures.running, figures.waiting, figures.failed) == (0, 0, 0)
    if not cancels:
        assert figures.finished == len(bed.requests)


def test_copies_leave_the_share_of_a_step_to_those_who_read() -> None:
    bed = Bed(n_seq_max=4, n_ubatch=64)
    bed.submit_several(3, PROMPT)
    other = bed.submit([7] * 14)
    bed.engine.step()
    assert len(other.tokens) == 1
