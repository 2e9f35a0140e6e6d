"""Tests of restarts: requests that restart, are cancelled or fail together, over a scripted context without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helpers.engines import EngineHarness

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


def test_sequence_keeps_no_old_tokens_after_a_failed_admission() -> None:
    harness = EngineHarness(n_seq_max=1)
    harness.submit([9] * 20, 5)
    harness.run()
    failing = harness.submit(PROMPT, 5)
    set_sampling = harness.context.set_sampling

    def fail(*arguments: Any) -> None:
        raise NativeError("no memory")

    harness.context.set_sampling = fail  # type: ignore[method-assign]
    harness.engine.step()
    harness.context.set_sampling = set_sampling  # type: ignore[method-assign]
    assert isinstance(failing.error, NativeError)
    later = harness.submit(PROMPT, 5)
    harness.run()
    harness.check()
    assert later.finish_reason == "length"


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


def test_requests_restart_with_the_same_output_after_a_cancel_that_did_not_mean_them() -> None:
    harness = EngineHarness(n_seq_max=3, depth=2)
    for i in range(3):
        harness.submit([i, *PROMPT] * 5, 30, seed=i)
    for _ in range(6):
        harness.engine.step()
    n_output = [len(request.tokens) for request in harness.requests]
    assert max(n_output) > 4

    def before(what: str, seqs: Sequence[int]) -> None:
        raise harness.late_cancel()

    harness.context.before = before
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
    harness.context.before = lambda what, seqs: (_ for _ in ()).throw(harness.late_cancel())
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
