"""Claims about requests that arrive at an engine, over a scripted context: no model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import mean

import pytest
from helpers.engines import Bed

from pymtp.bench.traffic import Traffic, delays
from pymtp.engine.request import Request
from pymtp.errors import NativeError


class Waits:
    """The scripted context's clock, which sleeping moves."""

    def __init__(self, bed: Bed) -> None:
        self._context = bed.context
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._context.now += seconds


def traffic(bed: Bed) -> tuple[Traffic, Waits]:
    waits = Waits(bed)
    return Traffic(bed.engine, bed.context.clock, waits), waits


def requests(bed: Bed, n: int, tokens: int = 5) -> list[Callable[[], Request]]:
    return [partial(bed.submit, [1 + i, 2, 3], tokens, ignore_eos=True) for i in range(n)]


def test_all_pieces_are_heard_when_the_engine_hands_them_out() -> None:
    bed = Bed(depth=0, n_seq_max=2)
    heard, _ = traffic(bed)
    seconds = heard.run(requests(bed, 2), [0.0, 0.0])
    bed.check()
    assert seconds == bed.context.now == sum(heard.steps)
    for text in heard.texts:
        assert len(text.pieces) == len(text.request.tokens) == 5
        assert text.pieces[-1] == text.request.updated
        assert text.first_token == text.request.completion.stats.time_to_first_token
        assert sum(text.gaps) == pytest.approx(text.request.completion.stats.decode_seconds)


def test_a_step_that_brings_a_request_nothing_is_no_piece_of_it() -> None:
    bed = Bed(depth=0, n_seq_max=2)
    heard, _ = traffic(bed)
    slow = heard.add(bed.submit([1, 2, 3], 20, ignore_eos=True, ahead=2))  # its reader stays away
    other = heard.add(bed.submit([1, 2, 3], 20, ignore_eos=True))
    heard.step_until(lambda: other.request.ended)
    assert len(slow.pieces) == len(slow.request.tokens) == 2
    assert len(other.pieces) == 20


def test_a_request_waits_from_when_it_was_due_though_a_step_was_under_way() -> None:
    bed = Bed(depth=0, n_seq_max=2)
    heard, _ = traffic(bed)
    heard.run(requests(bed, 2), [0.0, 0.5])
    late = heard.texts[1]
    assert late.due == 0.5
    assert late.request.submitted > 0.5
    assert late.first_token == late.pieces[0] - 0.5


def test_where_nobody_runs_it_sleeps_until_the_next_is_due_and_not_longer() -> None:
    bed = Bed(depth=0, n_seq_max=2)
    heard, waits = traffic(bed)
    seconds = heard.run(requests(bed, 2), [0.0, 1000.0])
    assert len(waits.slept) == 1
    assert heard.texts[1].request.submitted == 1000.0
    assert seconds == 1000.0 + heard.texts[1].pieces[-1] - 1000.0
    assert sum(heard.steps) == pytest.approx(seconds - waits.slept[0])


def test_a_request_that_fails_ends_the_measurement_with_its_error() -> None:
    bed = Bed(depth=0, n_seq_max=2)
    heard, _ = traffic(bed)
    bed.context.alone_fails = lambda seq: NativeError("no finite logits") if seq == 1 else None
    with pytest.raises(NativeError, match="no finite logits"):
        heard.run(requests(bed, 2), [0.0, 0.0])


def test_requests_arrive_at_their_rate_the_same_each_time_or_all_at_once() -> None:
    assert delays(3, None, 0) == [0.0, 0.0, 0.0]
    due = delays(4001, 2.0, 7)
    assert due == delays(4001, 2.0, 7) != delays(4001, 2.0, 8)
    assert due[0] == 0
    gaps = [later - earlier for earlier, later in pairwise(due)]
    assert min(gaps) > 0
    assert mean(gaps) == pytest.approx(0.5, rel=0.06)  # four standard deviations
