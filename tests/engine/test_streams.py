"""Claims about streams and their readers, over a scripted context: no model."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from helpers.engines import Bed
from helpers.scripted import written

from pymtp.engine.request import Caller, Piece, Unread

PROMPT = [1, 2, 3, 4, 5]


def test_a_stream_that_nobody_reads_stops_a_few_pieces_ahead() -> None:
    bed = Bed(n_seq_max=2)
    unread = bed.submit(PROMPT, 500, ahead=4)
    bed.submit(PROMPT, 500, seed=1)
    for _ in range(60):
        bed.engine.step()
    assert len(unread.unread) == 4
    while not bed.requests[1].ended:
        bed.engine.step()
    assert not bed.engine.step()
    unread.unread.popleft()
    assert bed.engine.step()


def test_a_stream_that_nobody_reads_gives_way_once_and_goes_on_as_it_would_have() -> None:
    bed = Bed(n_seq_max=1)
    slow = bed.submit(PROMPT, 60, ahead=2)
    got = []
    for _ in range(4):
        bed.engine.step()
    second = bed.submit(PROMPT, 10, seed=1)
    while not second.ended:
        bed.engine.step()
    assert not slow.ended
    assert slow.gave_way
    while not slow.ended:
        got += [token for piece in slow.unread for token in piece.token_ids]
        slow.unread.clear()
        bed.engine.step()
    got += [token for piece in slow.unread for token in piece.token_ids]
    assert got == slow.tokens == written(0, PROMPT, 60)


def test_streams_that_gave_way_take_no_time_of_others_until_they_are_read_again() -> None:
    bed = Bed(n_seq_max=1)
    left = [bed.submit(PROMPT, 500, seed=i, ahead=4) for i in range(3)]
    for _ in range(200):
        bed.engine.step()
    assert bed.engine.idle
    asked = bed.submit(PROMPT, 10, seed=3)
    while not asked.ended:
        bed.engine.step()
    assert [len(stream.unread) for stream in left] == [4] * 3
    assert bed.engine.figures().waiting == 3
    bed.run()  # which reads them
    bed.check()


def test_a_stream_that_gave_way_before_writes_ahead_of_its_reader_where_others_wait() -> None:
    bed = Bed(n_seq_max=2)
    slow, long = bed.submit(PROMPT, 60, ahead=2), bed.submit(PROMPT, 900, seed=1)
    first = None
    while not (slow.gave_way and slow.paused and slow.writer is not None):
        bed.engine.step()
        if slow.paused and first is None:
            first = bed.submit(PROMPT, 5, seed=2)
        if slow.gave_way and slow.writer is None:
            slow.unread.clear()
    asked = bed.submit(PROMPT, 5, seed=3)
    while not asked.ended:
        bed.engine.step()
    assert not long.ended
    bed.run()
    bed.check()


def test_a_stream_that_waits_for_its_reader_can_be_cancelled() -> None:
    bed = Bed(n_seq_max=1)
    left, other = (bed.submit(PROMPT, 500, seed=i, ahead=4) for i in range(2))
    while not (left.gave_way and other.paused):
        bed.engine.step()
    bed.engine.cancel(left)
    assert not bed.engine.idle
    bed.engine.step()
    assert left.reason == "cancelled"
    assert (bed.engine.figures().running, bed.engine.figures().waiting) == (1, 0)


def test_streams_read_by_turns_on_too_few_sequences_all_come_to_their_ends() -> None:
    bed = Bed(n_seq_max=1)
    streams = [bed.submit(PROMPT, 40, seed=i, ahead=2) for i in range(3)]
    for turn in range(10_000):
        stream = streams[turn % 3]
        while not stream.unread and not stream.ended:
            bed.engine.step()
        if stream.unread:
            stream.unread.popleft()
        if all(stream.ended for stream in streams):
            break
    bed.check()
    prompts = sum(what == "prefill" for what, _, _ in bed.context.launches)
    assert prompts <= 6, "each was read at most twice"


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_request_has_ended_only_once_all_of_it_is_there(cancelled: bool) -> None:
    """Another thread may look at any moment."""
    bed = Bed()
    caller = Caller()
    seen: list[tuple[bool, int]] = []

    class Watched(Unread):
        def append(self, piece: Piece) -> None:
            super().append(piece)
            seen.append((request.ended, caller.unended))

    class WatchedTokens(list[int]):
        def __iadd__(self, more: Iterable[int]) -> WatchedTokens:  # type: ignore[misc]
            super().__iadd__(more)
            seen.append((request.ended, caller.unended))
            return self

    request = bed.submit(PROMPT, 9, ahead=10, caller=caller)
    request.unread, request.tokens = Watched(), WatchedTokens()
    bed.engine.step()
    if cancelled:
        bed.context.cancel()
    while not request.ended:
        bed.engine.step()
    assert set(seen) == {(False, 1)}
    assert caller.unended == 0
    assert not cancelled or request.unread[-1].token_ids == []
