"""Tests of restarts: requests that restart, are cancelled or fail together, over a scripted context without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.engines import EngineHarness
from helpers.scripted import expected_tokens

from pymtp.errors import NativeError

PROMPT = [1, 2, 3, 4, 5]


def test_failed_call_ends_only_the_requests_of_its_batch() -> None:
    harness = EngineHarness(n_seq_max=2)
    requests = [harness.submit(PROMPT, 30, seed=i) for i in range(4)]

    failed: list[str] = []

    def before(what: str, seqs: Sequence[int]) -> None:
        if what == "verify" and not failed and len(seqs) == 2:
            failed.append(what)
            raise NativeError("no memory")

    harness.context.before = before
    harness.run()
    harness.check()
    assert [request.error is None for request in requests] == [False, False, True, True]


def test_context_cancel_ends_earlier_requests_and_no_later_one() -> None:
    harness = EngineHarness(n_seq_max=2)
    before = [harness.submit(PROMPT, 30, seed=i) for i in range(3)]
    for _ in range(3):
        harness.engine.step()
    harness.context.cancel()
    after = harness.submit(PROMPT, 30)
    harness.run()
    harness.check()
    assert [request.finish_reason for request in before] == ["cancelled"] * 3
    assert (after.finish_reason, harness.context.cancelled) == ("length", False)


def test_sequence_keeps_no_old_tokens_after_an_interrupt_during_admission() -> None:
    harness = EngineHarness(n_seq_max=1)
    harness.submit([9] * 20, 5)
    harness.run()
    harness.submit(PROMPT, 5)
    set_sampling = harness.context.set_sampling

    def interrupted(*arguments: Any) -> None:
        harness.context.set_sampling = set_sampling  # type: ignore[method-assign]
        raise KeyboardInterrupt

    harness.context.set_sampling = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        harness.engine.step()
    harness.run()
    harness.check()


def test_request_submitted_after_cancel_restarts_if_its_call_is_cancelled() -> None:
    harness = EngineHarness(n_seq_max=2)
    first = harness.submit(PROMPT, 30)
    harness.engine.step()
    later = harness.submit(PROMPT, 30, seed=1)
    later.cancel_count = 10**9  # submitted after the cancel(), which the call noticed late
    harness.engine.step()
    harness.context.before = lambda what, seqs: harness.context.cancel() if what == "draft" else None
    harness.engine.step()
    harness.context.before = lambda what, seqs: None
    harness.run()
    harness.check()
    assert (first.finish_reason, later.finish_reason) == ("cancelled", "length")


def test_interrupt_is_raised_and_requests_restart_with_the_same_output() -> None:
    harness = EngineHarness(n_seq_max=3, depth=2)
    for i in range(3):
        harness.submit([i, *PROMPT] * 5, 30, seed=i)
    for _ in range(6):
        harness.engine.step()
    n_output = [len(request.tokens) for request in harness.requests]
    assert max(n_output) > 4

    def before(what: str, seqs: Sequence[int]) -> None:
        raise KeyboardInterrupt

    harness.context.before = before
    with pytest.raises(KeyboardInterrupt):
        harness.engine.step()
    harness.context.before = lambda what, seqs: None
    harness.run()
    harness.check()
    assert all(request.finish_reason == "length" for request in harness.requests)


def test_restarted_request_verifies_its_output_and_does_not_prefill_it() -> None:
    harness = EngineHarness(depth=3)
    request = harness.submit(PROMPT, 30)
    for _ in range(4):
        harness.engine.step()
    n = len(request.tokens)
    harness.context.before = lambda what, seqs: (_ for _ in ()).throw(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        harness.engine.step()
    harness.context.before = lambda what, seqs: None
    harness.engine.process_queues()
    done = len(harness.context.calls)
    while request.decode_state is None:
        harness.engine.step()
    recomputed = harness.context.calls[done:]
    assert recomputed[0] == ("prefill", (0,), len(PROMPT))
    assert {what for what, _, _ in recomputed[1:]} == {"verify"}
    assert harness.context.tokens() == [*PROMPT, *request.tokens[:-1]]
    assert len(request.tokens) == n


def test_tokens_of_an_interrupted_round_do_not_count_for_stop_strings() -> None:
    """Interrupt a round after its tokens were added to the text of the request, but nowhere else."""
    harness = EngineHarness(depth=3, hits=[False])
    text = "".join(chr(ord("0") + token) for token in expected_tokens(0, PROMPT, 40))
    stop = text[2] + text[0]  # only a text that keeps the tokens of the interrupted round has this string
    assert stop not in text
    request = harness.submit(PROMPT, 40, stop=stop)
    for _ in range(2):
        harness.engine.step()
    assert len(request.tokens) == 2
    original = harness.context.rewind

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    harness.context.rewind = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        harness.engine.step()
    harness.context.rewind = original  # type: ignore[method-assign]
    harness.run()
    harness.check()
    assert request.finish_reason == "length"
