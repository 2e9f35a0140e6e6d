"""Claims about signal handlers that raise in the engine, between native calls, over a scripted context: no model."""

from __future__ import annotations

from contextlib import suppress

import pytest
from helpers.engines import Bed
from helpers.interrupts import Interrupted

from pymtp.engine.request import Piece, Request, Unread
from pymtp.errors import NativeError

PROMPT = [1, 2, 3, 4, 5]
ENGINE = "/pymtp/engine/"


def write(bed: Bed, read: list[list[int]], steps: int = 10_000) -> None:
    """Steps, and what readers take of each request."""
    for _ in range(steps):
        if all(request.ended for request in bed.requests):
            return
        bed.engine.step()
        for request, tokens in zip(bed.requests, read, strict=True):
            while request.unread:
                tokens += request.unread.popleft().token_ids


def a_bed() -> tuple[Bed, Request]:
    """With a request that is to be cancelled."""
    bed = Bed(n_seq_max=2, depth=2)
    bed.submit(PROMPT, 6, ahead=2)
    bed.submit_several(2, PROMPT, 5, seed=1)
    cancelled = bed.submit([7] * 20, 30, seed=3)
    bed.submit(PROMPT[::-1], 4, seed=4, ahead=2)
    return bed, cancelled


def check(bed: Bed, cancelled: Request, read: list[list[int]]) -> None:
    bed.check()
    for request, tokens in zip(bed.requests, read, strict=True):
        assert request.caller.unended == 0
        assert request.reason == ("cancelled" if request is cancelled else "length")
        assert request.ahead is None or tokens == request.tokens
    assert sorted(bed.engine._scheduler.free) == [0, 1]


def end(bed: Bed, cancelled: Request, n: int, read: list[list[int]]) -> bool:
    """Whether all requests ended before line n."""
    try:
        with Interrupted(n, ENGINE):
            write(bed, read, 2)
            bed.engine.cancel(cancelled)
            write(bed, read)
            return True
    except KeyboardInterrupt:  # as who runs the engine does
        bed.engine.cancel(cancelled)
        return False


@pytest.mark.parametrize("first", range(7))
def test_wherever_a_handler_raises_each_text_comes_to_its_end_and_stays_the_same(first: int) -> None:
    for n in range(first, 10**6, 7):
        bed, cancelled = a_bed()
        read: list[list[int]] = [[] for _ in bed.requests]
        through = end(bed, cancelled, n, read)
        bed.engine.settle()
        write(bed, read)
        check(bed, cancelled, read)
        if through:
            return


@pytest.mark.parametrize("n", [300, 1000, 1600])
def test_a_second_one_while_that_is_put_right_changes_nothing(n: int) -> None:
    for again in range(10**6):
        bed, cancelled = a_bed()
        read: list[list[int]] = [[] for _ in bed.requests]
        assert not end(bed, cancelled, n, read)
        through = False
        with suppress(KeyboardInterrupt), Interrupted(again, ENGINE):
            bed.engine.settle()
            through = True
        bed.engine.settle()
        write(bed, read)
        check(bed, cancelled, read)
        if through:
            return


def test_a_piece_that_was_read_before_a_handler_raised_is_not_there_again() -> None:
    bed = Bed(depth=0)
    request = bed.submit(PROMPT, 6, ahead=4)
    read: list[int] = []

    class Taken(Unread):
        def append(self, piece: Piece) -> None:
            super().append(piece)
            read.extend(self.popleft().token_ids)  # by its reader, on another thread
            if len(read) == 3:
                raise KeyboardInterrupt

    request.unread = Taken()
    with pytest.raises(KeyboardInterrupt):
        write(bed, [[]])
    write(bed, [read])
    bed.check()
    assert read == request.tokens


def test_requests_fail_where_what_broke_a_step_off_comes_again_as_it_is_put_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bed, _ = a_bed()
    bed.engine.step()

    def no_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        bed.context.before = no_memory
        patch.setattr(Request, "begin_anew", no_memory)
        for call in (bed.engine.step, bed.engine.settle):
            with pytest.raises(MemoryError):
                call()
        bed.engine.fail(NativeError("on purpose"))
    assert all(isinstance(request.failure(), NativeError) for request in bed.requests)
    assert not bed.engine._live
    bed.context.before = lambda what, seqs: None
    bed.submit(PROMPT, 5)
    bed.run()
    bed.check()
    assert bed.requests[-1].reason == "length"
    assert sorted(bed.engine._scheduler.free) == [0, 1]
