"""Tests of interrupts: signal handlers raise at any line of the engine, over a scripted context without a model."""

from __future__ import annotations

from contextlib import suppress

import pytest
from helpers.engines import EngineHarness
from helpers.interrupts import InterruptAtLine

from pymtp.engine.request import Piece, Request, UnreadPieces
from pymtp.errors import NativeError

PROMPT = [1, 2, 3, 4, 5]
ENGINE = ("/pymtp/engine/", "/pymtp/prefix_cache/", "/pymtp/drafting/", "/pymtp/chat/thinking.py")


def run(harness: EngineHarness, read: list[list[int]], steps: int = 10_000) -> None:
    """Run the engine, and append the tokens that each request's reader takes to the list of the request in `read`."""
    for _ in range(steps):
        if all(request.ended for request in harness.requests):
            return
        harness.engine.step()
        for request, tokens in zip(harness.requests, read, strict=True):
            while request.unread:
                tokens += request.unread.popleft().token_ids


def make_harness() -> tuple[EngineHarness, Request]:
    """Make an engine with five requests, and return one of them, which the test cancels."""
    harness = EngineHarness(n_seq_max=2, depth=2)
    harness.submit(PROMPT, 6, max_unread=2)
    harness.submit_several(2, PROMPT, 5, seed=1)
    cancelled = harness.submit([7] * 20, 30, seed=3)
    harness.submit(PROMPT[::-1], 4, seed=4, max_unread=2)
    return harness, cancelled


def check(harness: EngineHarness, cancelled: Request, read: list[list[int]]) -> None:
    harness.check()
    for request, tokens in zip(harness.requests, read, strict=True):
        assert request.waiter.n_unfinished == 0
        assert request.finish_reason == ("cancelled" if request is cancelled else "length")
        assert request.max_unread is None or tokens == request.tokens
    assert sorted(harness.engine._scheduler.free) == [0, 1]


def run_interrupted(harness: EngineHarness, cancelled: Request, n: int, read: list[list[int]]) -> bool:
    """Run the engine with an interrupt at line n. Return True if all requests ended before that line."""
    try:
        with InterruptAtLine(n, *ENGINE):
            run(harness, read, 2)
            harness.engine.cancel(cancelled)
            run(harness, read)
            return True
    except KeyboardInterrupt:  # EngineRunner also cancels after an interrupt
        harness.engine.cancel(cancelled)
        return False


@pytest.mark.parametrize("first", range(7))
def test_output_stays_the_same_after_an_interrupt_at_any_line(first: int) -> None:
    for n in range(first, 10**6, 7):
        harness, cancelled = make_harness()
        read: list[list[int]] = [[] for _ in harness.requests]
        completed = run_interrupted(harness, cancelled, n, read)
        harness.engine.process_queues()
        run(harness, read)
        check(harness, cancelled, read)
        if completed:
            return


@pytest.mark.parametrize("n", [300, 1000, 1600])
def test_output_stays_the_same_after_a_second_interrupt_during_the_recovery(n: int) -> None:
    for again in range(10**6):
        harness, cancelled = make_harness()
        read: list[list[int]] = [[] for _ in harness.requests]
        assert not run_interrupted(harness, cancelled, n, read)
        completed = False
        with suppress(KeyboardInterrupt), InterruptAtLine(again, *ENGINE):
            harness.engine.process_queues()
            completed = True
        harness.engine.process_queues()
        run(harness, read)
        check(harness, cancelled, read)
        if completed:
            return


def test_piece_that_was_read_before_an_interrupt_is_not_emitted_again() -> None:
    harness = EngineHarness(depth=0)
    request = harness.submit(PROMPT, 6, max_unread=4)
    read: list[int] = []

    class ReadAtOnce(UnreadPieces):
        def append(self, piece: Piece) -> None:
            super().append(piece)
            read.extend(self.popleft().token_ids)  # as a reader on another thread might do
            if len(read) == 3:
                raise KeyboardInterrupt

    request.unread = ReadAtOnce()
    with pytest.raises(KeyboardInterrupt):
        run(harness, [[]])
    run(harness, [read])
    harness.check()
    assert read == request.tokens


def test_all_requests_fail_if_the_recovery_raises_the_error_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, _ = make_harness()
    harness.engine.step()

    def no_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        harness.context.before = no_memory
        patch.setattr(Request, "restart", no_memory)
        for call in (harness.engine.step, harness.engine.process_queues):
            with pytest.raises(MemoryError):
                call()
        harness.engine.fail_all(NativeError("on purpose"))
    assert all(isinstance(request.error_copy(), NativeError) for request in harness.requests)
    assert not harness.engine._unfinished
    harness.context.before = lambda what, seqs: None
    harness.submit(PROMPT, 5)
    harness.run()
    harness.check()
    assert harness.requests[-1].finish_reason == "length"
    assert sorted(harness.engine._scheduler.free) == [0, 1]
