"""Claims about requests that begin anew, are cancelled, or fail together, over a scripted context: no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.engines import Bed
from helpers.scripted import written

from pymtp.errors import NativeError

PROMPT = [1, 2, 3, 4, 5]


def test_a_launch_that_fails_ends_those_that_were_in_it() -> None:
    bed = Bed(n_seq_max=2)
    requests = [bed.submit(PROMPT, 30, seed=i) for i in range(4)]

    failed: list[str] = []

    def before(what: str, seqs: Sequence[int]) -> None:
        if what == "verify" and not failed and len(seqs) == 2:
            failed.append(what)
            raise NativeError("no memory")

    bed.context.before = before
    bed.run()
    bed.check()
    assert [request.error is None for request in requests] == [False, False, True, True]


def test_cancel_ends_all_that_were_there_before_it_and_no_later_request() -> None:
    bed = Bed(n_seq_max=2)
    before = [bed.submit(PROMPT, 30, seed=i) for i in range(3)]
    for _ in range(3):
        bed.engine.step()
    bed.context.cancel()
    after = bed.submit(PROMPT, 30)
    bed.run()
    bed.check()
    assert [request.reason for request in before] == ["cancelled"] * 3
    assert (after.reason, bed.context.cancelled) == ("length", False)


def test_a_signal_as_a_request_is_given_its_sequence_leaves_nothing_of_what_was_there() -> None:
    bed = Bed(n_seq_max=1)
    bed.submit([9] * 20, 5)
    bed.run()
    bed.submit(PROMPT, 5)
    set_sampling = bed.context.set_sampling

    def stopped(*arguments: Any) -> None:
        bed.context.set_sampling = set_sampling  # type: ignore[method-assign]
        raise KeyboardInterrupt

    bed.context.set_sampling = stopped  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bed.engine.step()
    bed.run()
    bed.check()


def test_a_call_that_the_cancel_stopped_begins_anew_where_it_was_not_meant() -> None:
    bed = Bed(n_seq_max=2)
    first = bed.submit(PROMPT, 30)
    bed.engine.step()
    later = bed.submit(PROMPT, 30, seed=1)
    later.cancels = 10**9  # came after a cancel that the launch noticed late
    bed.engine.step()
    bed.context.before = lambda what, seqs: bed.context.cancel() if what == "draft" else None
    bed.engine.step()
    bed.context.before = lambda what, seqs: None
    bed.run()
    bed.check()
    assert (first.reason, later.reason) == ("cancelled", "length")


def test_what_a_handler_raises_comes_out_and_texts_in_the_call_begin_anew_and_stay_the_same() -> None:
    bed = Bed(n_seq_max=3, depth=2)
    for i in range(3):
        bed.submit([i, *PROMPT] * 5, 30, seed=i)
    for _ in range(6):
        bed.engine.step()
    written_before = [len(request.tokens) for request in bed.requests]
    assert max(written_before) > 4

    def before(what: str, seqs: Sequence[int]) -> None:
        raise KeyboardInterrupt

    bed.context.before = before
    with pytest.raises(KeyboardInterrupt):
        bed.engine.step()
    bed.context.before = lambda what, seqs: None
    bed.run()
    bed.check()
    assert all(request.reason == "length" for request in bed.requests)


def test_a_text_that_begins_anew_is_verified_and_not_read_so_that_its_bits_are_those_of_rounds() -> None:
    bed = Bed(depth=3)
    request = bed.submit(PROMPT, 30)
    for _ in range(4):
        bed.engine.step()
    n = len(request.tokens)
    bed.context.before = lambda what, seqs: (_ for _ in ()).throw(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bed.engine.step()
    bed.context.before = lambda what, seqs: None
    bed.engine.settle()
    done = len(bed.context.launches)
    while request.writer is None:
        bed.engine.step()
    again = bed.context.launches[done:]
    assert again[0] == ("prefill", (0,), len(PROMPT))
    assert {what for what, _, _ in again[1:]} == {"verify"}
    assert bed.context.tokens() == [*PROMPT, *request.tokens[:-1]]
    assert len(request.tokens) == n


def test_tokens_of_a_round_that_was_broken_off_do_not_count_for_stop_strings() -> None:
    """The interrupt comes when the text has heard of the round's tokens, and nobody else has."""
    bed = Bed(depth=3, hits=[False])
    text = "".join(chr(ord("0") + token) for token in written(0, PROMPT, 40))
    stop = text[2] + text[0]  # as a text would look that began anew after it
    assert stop not in text
    request = bed.submit(PROMPT, 40, stop=stop)
    for _ in range(2):
        bed.engine.step()
    assert len(request.tokens) == 2
    original = bed.context.rewind

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    bed.context.rewind = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bed.engine.step()
    bed.context.rewind = original  # type: ignore[method-assign]
    bed.run()
    bed.check()
    assert request.reason == "length"
