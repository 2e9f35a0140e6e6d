"""Tests of latency: how long decoding requests wait while long prompts arrive."""

from __future__ import annotations

import pytest
from conftest import make_llm
from helpers.engines import EngineHarness

from pymtp import SamplingParams
from pymtp.engine.request import Request, Waiter

LONG = 4096


def piece_intervals(harness: EngineHarness, requests: list[Request], until: Request) -> list[float]:
    """Return the times between the pieces of each request, until the request `until` has its first token."""
    intervals = []
    last = {request: (harness.context.now, len(request.tokens)) for request in requests}
    while not until.tokens:
        harness.engine.step()
        for request, (then, n) in last.items():
            if len(request.tokens) > n:
                intervals.append(harness.context.now - then)
                last[request] = harness.context.now, len(request.tokens)
    return intervals


@pytest.mark.parametrize("n_ubatch", [64, 512])
@pytest.mark.parametrize("depth", [0, 3, "auto"])
@pytest.mark.parametrize("arriving", [1, 3])
def test_decoding_requests_get_a_piece_after_each_ubatch_of_a_long_prompt(
    n_ubatch: int, depth: int | str, arriving: int
) -> None:
    harness = EngineHarness(depth=depth, n_seq_max=7, n_ctx=2 * LONG, n_ubatch=n_ubatch, hits=[True, False, True])
    decoding = [harness.submit([i] * 9, 2 * LONG - 20, seed=i) for i in range(4)]
    for _ in range(10):
        harness.engine.step()
    arrived = [harness.submit([9 + i] * LONG, 5) for i in range(arriving)]
    intervals = piece_intervals(harness, decoding, arrived[-1])
    c = harness.context
    ubatch_seconds = c.call_seconds + n_ubatch * c.token_seconds
    # 4 + 1: the first request that arrived decodes while the next one is prefilled
    rows, n = 1 + c.draft_tokens, 4 + (arriving > 1)
    round_seconds = 2 * c.call_seconds + n * (c.draft_tokens * c.step_seconds + rows * c.row_seconds)
    assert max(intervals) <= ubatch_seconds + round_seconds + 1e-6
    assert len(intervals) == 4 * arriving * LONG // n_ubatch


def test_each_step_recomputes_only_a_small_part_of_a_restarted_request() -> None:
    """Check that each step prefills one chunk of the prompt, or verifies a few output tokens."""
    harness = EngineHarness(n_seq_max=2, n_ctx=400)
    slow = harness.submit([1] * 100, 60, max_unread=4)
    other = harness.submit([2] * 5, 390, seed=1)
    while not slow.paused:
        harness.engine.step()
    harness.submit([3] * 5, 1, seed=2)  # preempts `slow`
    harness.engine.step()
    assert slow.preempted
    while slow.decode_state is None:
        slow.unread.clear()
        before, n = len(harness.context.calls), len(other.tokens)
        harness.engine.step()
        assert len(other.tokens) > n
        # a chunk, the drafts of the other request, and the verification of these drafts
        assert len(harness.context.calls) - before <= 3


def test_step_takes_one_decode_call_for_a_ubatch_of_a_long_prompt_and_one_for_a_round() -> None:
    with make_llm(n_seq_max=3, n_ctx=LONG + 64, n_ubatch=512, n_batch=512) as llm:
        vocab = llm.model.n_vocab
        params = SamplingParams(max_tokens=None, ignore_eos=True)
        decoding = [request for i in (1, 2) for request in llm._submit([[i] * 40], params, Waiter())]
        for _ in range(4):
            llm._engine.step()
        (long,) = llm._submit([[i * 7 % vocab for i in range(LONG)]], SamplingParams(3), Waiter())
        steps = 0
        while not long.tokens:
            before, tokens = llm.context.counters, [len(request.tokens) for request in decoding]
            llm._engine.step()
            after = llm.context.counters
            assert after.target_decodes - before.target_decodes == 2
            assert all(len(request.tokens) > n for request, n in zip(decoding, tokens, strict=True))
            steps += 1
        assert steps == LONG // 512
