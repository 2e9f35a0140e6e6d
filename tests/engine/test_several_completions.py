"""Claims about several completions of one prompt, over a scripted context: the prompt is read once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
from helpers.engines import Bed
from hypothesis import given
from hypothesis import strategies as st

from pymtp.errors import CancelledError, NativeError

PROMPT = [1, 2, 3, 4, 5] * 10
LONG = [3, 1, 4, 1, 5] * 60


def tokens_read(bed: Bed) -> int:
    return sum(n for what, _, n in bed.context.launches if what == "prefill")


@pytest.mark.parametrize("length", [50, 48, 5])  # one has pieces of n_ubatch only
@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_prompt_is_read_once_where_all_completions_have_a_place(n: int, length: int) -> None:
    bed = Bed(n_seq_max=5)
    requests = bed.submit_several(n, PROMPT[:length])
    bed.run()
    bed.check()
    assert tokens_read(bed) == length
    assert len(bed.context.copies) == n - 1
    assert [request.completion.stats.cached_tokens for request in requests] == [0] + [length] * (n - 1)
    assert {request.completion.stats.rounds for request in requests} == {5}
    assert len({request.prefilled for request in requests}) == 1  # and all begin at once


@pytest.mark.parametrize("n_seq_max", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [3, 7, 12])
def test_a_prompt_is_read_once_where_completions_wait_for_a_place(n: int, n_seq_max: int) -> None:
    bed = Bed(n_seq_max=n_seq_max, cache_bytes=10**6)
    bed.submit_several(n, LONG)
    bed.run()
    bed.check()
    assert tokens_read(bed) == len(LONG)


def test_without_host_memory_it_is_read_for_each_that_comes_later() -> None:
    bed = Bed(n_seq_max=1)
    bed.submit_several(3, LONG)
    bed.run()
    bed.check()
    assert tokens_read(bed) == 3 * len(LONG)


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


@pytest.mark.parametrize("cache_prompt", [True, False])
def test_others_with_the_same_prompt_share_it_where_prompts_are_gone_on_from(cache_prompt: bool) -> None:
    bed = Bed(n_seq_max=4, cache_prompt=cache_prompt, cache_bytes=10**6)
    bed.submit_several(2, PROMPT)
    bed.submit_several(2, PROMPT, seed=7)
    bed.run()
    bed.check()
    bed.submit_several(2, PROMPT, seed=11)
    bed.run()
    bed.check()
    assert tokens_read(bed) == (len(PROMPT) if cache_prompt else 3 * len(PROMPT))


def test_where_a_copy_fails_the_prompt_is_read_again() -> None:
    bed = Bed(n_seq_max=3)
    failed: list[str] = []

    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == "copy" and not failed:
            failed.append(what)
            raise NativeError("no memory")

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
    assert len(bed.engine._scheduler.free) == 3
    bed.submit_several(1, LONG)
    bed.run()
    assert tokens_read(bed) == len(LONG)  # the other four did not read, and what the first did was no waste


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
