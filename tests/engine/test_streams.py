"""Tests of streams and their readers: pause, preemption and order, over a scripted context without a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pytest
from helpers.engines import EngineHarness
from helpers.scripted import expected_tokens

from pymtp.engine.request import Piece, Waiter

PROMPT = [1, 2, 3, 4, 5]


def test_unread_stream_pauses_after_max_unread_pieces() -> None:
    harness = EngineHarness(n_seq_max=2)
    unread = harness.submit(PROMPT, 500, max_unread=4)
    harness.submit(PROMPT, 500, seed=1)
    for _ in range(60):
        harness.engine.step()
    assert len(unread.unread) == 4
    while not harness.requests[1].ended:
        harness.engine.step()
    assert not harness.engine.step()
    unread.unread.popleft()
    assert harness.engine.step()


def test_unread_stream_is_preempted_once_and_its_output_stays_the_same() -> None:
    harness = EngineHarness(n_seq_max=1)
    slow = harness.submit(PROMPT, 60, max_unread=2)
    taken = []
    for _ in range(4):
        harness.engine.step()
    second = harness.submit(PROMPT, 10, seed=1)
    while not second.ended:
        harness.engine.step()
    assert not slow.ended
    assert slow.preempted
    while not slow.ended:
        taken += [token for piece in slow.unread for token in piece.token_ids]
        slow.unread.clear()
        harness.engine.step()
    taken += [token for piece in slow.unread for token in piece.token_ids]
    assert taken == slow.tokens == expected_tokens(0, PROMPT, 60)


def test_preempted_streams_are_not_computed_until_they_are_read() -> None:
    harness = EngineHarness(n_seq_max=1)
    unread = [harness.submit(PROMPT, 500, seed=i, max_unread=4) for i in range(3)]
    for _ in range(200):
        harness.engine.step()
    assert harness.engine.idle
    waiting = harness.submit(PROMPT, 10, seed=3)
    while not waiting.ended:
        harness.engine.step()
    assert [len(stream.unread) for stream in unread] == [4] * 3
    assert harness.engine.figures().waiting == 3
    harness.run()  # run() also reads the streams
    harness.check()


def test_stream_that_was_preempted_once_decodes_ahead_of_its_reader_if_others_wait() -> None:
    harness = EngineHarness(n_seq_max=2)
    slow, long = harness.submit(PROMPT, 60, max_unread=2), harness.submit(PROMPT, 900, seed=1)
    first = None
    while not (slow.preempted and slow.paused and slow.decode_state is not None):
        harness.engine.step()
        if slow.paused and first is None:
            first = harness.submit(PROMPT, 5, seed=2)
        if slow.preempted and slow.decode_state is None:
            slow.unread.clear()
    waiting = harness.submit(PROMPT, 5, seed=3)
    while not waiting.ended:
        harness.engine.step()
    assert not long.ended
    harness.run()
    harness.check()


def test_paused_stream_can_be_cancelled() -> None:
    harness = EngineHarness(n_seq_max=1)
    left, other = (harness.submit(PROMPT, 500, seed=i, max_unread=4) for i in range(2))
    while not (left.preempted and other.paused):
        harness.engine.step()
    harness.engine.cancel(left)
    assert not harness.engine.idle
    harness.engine.step()
    assert left.finish_reason == "cancelled"
    assert (harness.engine.figures().running, harness.engine.figures().waiting) == (1, 0)


def test_more_streams_than_sequences_all_end_if_they_are_read_in_turn() -> None:
    harness = EngineHarness(n_seq_max=1)
    streams = [harness.submit(PROMPT, 40, seed=i, max_unread=2) for i in range(3)]
    for turn in range(10_000):
        stream = streams[turn % 3]
        while not stream.unread and not stream.ended:
            harness.engine.step()
        if stream.unread:
            stream.unread.popleft()
        if all(stream.ended for stream in streams):
            break
    harness.check()
    prompts = sum(what == "prefill" for what, _, _ in harness.context.calls)
    assert prompts <= 6, "each prompt is prefilled at most twice"


@pytest.mark.parametrize("cancelled", [False, True])
def test_finish_reason_is_set_after_all_other_fields_of_a_request(cancelled: bool) -> None:
    """Check at each change of a field that the request has not ended: another thread may read it at any moment."""
    harness = EngineHarness()
    waiter = Waiter()
    seen: list[tuple[bool, int]] = []

    class WatchedPieces(deque[Piece]):
        def append(self, piece: Piece) -> None:
            super().append(piece)
            seen.append((request.ended, waiter.n_unfinished))

    class WatchedTokens(list[int]):
        def __iadd__(self, more: Iterable[int]) -> WatchedTokens:  # type: ignore[misc]
            super().__iadd__(more)
            seen.append((request.ended, waiter.n_unfinished))
            return self

    request = harness.submit(PROMPT, 9, max_unread=10, waiter=waiter)
    request.unread, request.tokens = WatchedPieces(), WatchedTokens()
    harness.engine.step()
    if cancelled:
        harness.context.cancel()
    while not request.ended:
        harness.engine.step()
    assert set(seen) == {(False, 1)}
    assert waiter.n_unfinished == 0
    assert not cancelled or request.unread[-1].token_ids == []
