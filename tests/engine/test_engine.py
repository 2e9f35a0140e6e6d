"""Tests of the engine: each request gets the same output as alone, over a scripted context without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from helpers.engines import EngineHarness
from helpers.scripted import RepeatingContext, SeededContext, expected_tokens, next_token
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.request import Waiter
from pymtp.errors import ContextFullError, InvalidRequestError, NativeError, PymtpError

PROMPT = [1, 2, 3, 4, 5]

request_plans = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 49), min_size=1, max_size=50),
        "max_tokens": st.one_of(st.none(), st.integers(1, 40)),
        "seed": st.integers(0, 5),
        "priority": st.integers(-1, 1),
        "draft_tokens": st.one_of(st.none(), st.integers(0, 4)),
        "max_unread": st.one_of(st.none(), st.integers(1, 4)),
        "submit_at": st.integers(0, 20),
        "cancel_at": st.one_of(st.none(), st.integers(1, 30)),
    }
)


@given(
    st.lists(request_plans, min_size=1, max_size=12),
    st.integers(1, 5),
    st.one_of(st.just("auto"), st.integers(0, 5)),
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.sets(st.integers(0, 30)),
    st.sampled_from([SeededContext, RepeatingContext]),
)
def test_engine_gives_each_request_the_output_that_it_would_get_alone(
    plan: list[dict[str, object]],
    n_seq_max: int,
    depth: int | str,
    hits: list[bool],
    cancelled_calls: set[int],
    context_type: type[SeededContext],
) -> None:
    harness = EngineHarness(depth=depth, text=13, n_ctx=64, n_seq_max=n_seq_max, hits=hits, context_type=context_type)
    n_calls = 0

    def before(_what: str, _seqs: Sequence[int]) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls in cancelled_calls:
            raise harness.late_cancel()

    harness.context.before = before
    for step in range(40):
        for planned in plan:
            if planned["submit_at"] == step:
                arguments = {name: planned[name] for name in planned if name not in ("submit_at", "cancel_at")}
                planned["request"] = harness.submit(**arguments)  # type: ignore[arg-type]
            if planned["cancel_at"] == step and "request" in planned:
                harness.engine.cancel(planned["request"])  # type: ignore[arg-type]
        harness.engine.step()
    harness.context.before = lambda what, seqs: None
    harness.run()
    harness.check()
    for planned, request in ((planned, planned["request"]) for planned in plan):
        assert planned["cancel_at"] is not None or request.finish_reason == "length"  # type: ignore[attr-defined]
    figures = harness.engine.figures()
    assert (figures.running, figures.waiting) == (0, 0)
    assert figures.finished + figures.cancelled == len(plan)
    assert figures.failed == 0
    assert figures.tokens == sum(len(request.tokens) for request in harness.requests)


@given(st.integers(1, 200), st.integers(0, 100), st.integers(1, 3))
def test_prefill_chunks_end_at_multiples_of_n_ubatch(n: int, n_cached: int, others: int) -> None:
    harness = EngineHarness(n_ctx=400, n_seq_max=1 + others)
    for i in range(others):
        harness.submit([7] * (10 + i), 400)
    for _ in range(others + 2):
        harness.engine.step()
    if n_cached:  # the next prompt begins with the text of an earlier request
        earlier = harness.submit([3] * n_cached, 1)
        while not earlier.ended:
            harness.engine.step()
    prompt = [3] * n_cached + [4] * n
    request = harness.submit(prompt, 1)
    ends = []
    while not request.ended:
        before = request.n_prefilled
        harness.engine.step()
        if request.seq is not None and request.n_prefilled != before:
            ends.append(request.n_prefilled)
    assert all(end % harness.context.n_ubatch == 0 for end in ends[:-1])
    assert request.tokens == expected_tokens(0, prompt, 1)


def test_scheduler_is_first_come_first_served_within_a_priority() -> None:
    harness = EngineHarness(n_seq_max=2)
    first = [harness.submit(PROMPT, 90 - 30 * (i > 0), seed=i) for i in range(3)]
    urgent = harness.submit(PROMPT, 30, seed=3, priority=-1)
    harness.engine.step()
    assert [request.seq for request in (*first, urgent)] == [1, None, None, 0]
    while not urgent.ended:
        harness.engine.step()
    harness.engine.step()
    assert [request.seq for request in first] == [1, 0, None]
    harness.run()
    harness.check()
    assert urgent.start_time == first[0].start_time < first[1].start_time < first[2].start_time


def test_round_of_a_single_request_takes_one_draft_call_and_one_verify_call() -> None:
    harness = EngineHarness(depth=3)
    harness.submit(PROMPT, 21)
    harness.run()
    kinds = [what for what, _, _ in harness.context.calls]
    assert kinds == ["prefill", *["draft", "verify"] * 5]


def test_first_output_token_is_emitted_as_a_piece_of_its_own() -> None:
    harness = EngineHarness()
    request = harness.submit(PROMPT, 21, max_unread=4)
    harness.engine.step()
    assert [piece.token_ids for piece in request.unread] == [expected_tokens(0, PROMPT, 1)]


def test_decoding_requests_share_one_draft_call_and_one_verify_call_per_round() -> None:
    harness = EngineHarness(depth=3, n_seq_max=4, n_ubatch=32)  # the four prompts are prefilled in one step
    for i in range(4):
        harness.submit(PROMPT, 21, seed=i)
    harness.run()
    assert [call for call in harness.context.calls if call[0] != "prefill"] == [
        ("draft", (0, 1, 2, 3), 3),
        ("verify", (0, 1, 2, 3), 4),
    ] * 5
    harness.check()
    figures = harness.engine.figures()
    assert (figures.rounds, figures.rows, figures.rows_per_round) == (5, 80, 16)
    assert (figures.depths, figures.sequences) == ({3: 5}, {4: 5})
    assert figures.acceptance_rate == 1


def test_step_prefills_at_most_one_ubatch_and_runs_one_round() -> None:
    harness = EngineHarness(n_seq_max=4, n_ctx=400)
    decoding = harness.submit(PROMPT, 300)
    harness.engine.step()
    for n in (100, 7, 60):
        harness.submit([9] * n, 5)
    while not decoding.ended:
        done = len(harness.context.calls)
        harness.engine.step()
        new_calls = harness.context.calls[done:]
        assert sum(n for what, _, n in new_calls if what == "prefill") <= harness.context.n_ubatch
        assert sum(what == "verify" for what, _, _ in new_calls) == 1
    harness.run()
    harness.check()


def test_short_prompts_are_prefilled_in_the_same_step_with_one_call_each() -> None:
    harness = EngineHarness(n_seq_max=8)
    for i in range(3):
        harness.submit([i, *PROMPT[1:]], 5, seed=i)
    harness.engine.step()
    assert [call for call in harness.context.calls if call[0] == "prefill"] == [
        ("prefill", (seq,), 5) for seq in range(3)
    ]


@pytest.mark.parametrize("when", [0, 1, 5])
@pytest.mark.parametrize("kind", [NativeError, InvalidRequestError])
def test_failed_request_does_not_affect_the_others(when: int, kind: type[NativeError | InvalidRequestError]) -> None:
    harness = EngineHarness(n_seq_max=3)
    requests = [harness.submit(PROMPT, 30, seed=i) for i in range(3)]
    calls = 0

    def fails(seq: int) -> Exception | None:
        nonlocal calls
        calls += seq == 1
        return kind("no finite logits") if seq == 1 and calls == 1 + when else None

    harness.context.sequence_error = fails
    harness.run()
    harness.check()
    assert [request.finish_reason for request in requests] == ["length", "cancelled", "length"]
    assert isinstance(requests[1].error_copy(), kind)
    assert harness.engine.figures().failed == 1
    # The sequence of the failed request is empty, or the last request has moved to it
    assert harness.context.tokens_of.count([]) == 1


def test_end_of_a_request_is_counted_before_its_waiter_is_notified() -> None:
    harness = EngineHarness(n_seq_max=2)
    seen: list[tuple[int, int, int]] = []

    def look() -> None:
        figures = harness.engine.figures()
        seen.append((figures.finished, figures.failed, figures.cancelled))

    requests = [harness.submit([i], 3, seed=i, waiter=Waiter(look)) for i in range(3)]
    harness.engine.cancel(requests[2])
    harness.context.sequence_error = lambda seq: NativeError("on purpose") if seq == 1 else None
    harness.run()
    assert sorted(seen) == [(0, 0, 1), (0, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("kind", [NativeError, InvalidRequestError, ContextFullError])
def test_error_of_a_prefill_fails_only_its_request(kind: type[PymtpError]) -> None:
    harness = EngineHarness(n_seq_max=3)
    requests = [harness.submit([i, *PROMPT], 30, seed=i) for i in range(3)]

    def before(what: str, seqs: Sequence[int]) -> None:
        if what == "prefill" and requests[1].seq in seqs:
            raise kind("on purpose")

    harness.context.before = before
    harness.run()
    harness.check()
    assert [type(request.error) for request in requests] == [type(None), kind, type(None)]


def test_draft_limit_of_a_request_holds_within_a_batch() -> None:
    harness = EngineHarness(depth=4, n_seq_max=3)
    limits = (None, 1, 0)
    for i, limit in enumerate(limits):
        harness.submit(PROMPT, 31, seed=i, draft_tokens=limit)
    harness.run()
    harness.check()
    for request, limit in zip(harness.requests, limits, strict=True):
        assert max(request.draft_stats.depths) == (4 if limit is None else limit)
    assert harness.requests[1].completion.stats.mean_accepted_length == 2


def test_request_in_a_batch_verifies_no_row_after_its_last_token() -> None:
    harness = EngineHarness(depth=4, n_seq_max=2)
    for i, left in enumerate((2, 40)):
        harness.submit(PROMPT, left, seed=i)
    harness.run()
    harness.check()
    assert max(harness.context.sampled) == len(PROMPT) + 39
    assert harness.context.verified[0] == {0: 1, 1: 5}


def test_padded_batch_fits_into_a_context_that_is_nearly_full() -> None:
    harness = EngineHarness(depth=5, n_seq_max=2, n_ctx=32)
    harness.submit([1] * 27, None)
    harness.submit([2] * 10, None, seed=1)
    harness.run()
    harness.check()


def test_prompt_reuses_the_sequence_of_a_finished_request() -> None:
    harness = EngineHarness(n_seq_max=3)
    for i in range(3):
        harness.submit([i, *PROMPT], 10, seed=i)
    harness.run()
    text = [1, *PROMPT, *harness.requests[1].tokens]
    more = harness.submit([*text, 4], 10, seed=1)
    harness.run()
    assert more.completion.stats.cached_tokens == len(text) - 1
    harness.check()


def test_stats_have_queue_time_and_time_to_first_token() -> None:
    harness = EngineHarness(n_seq_max=1)
    first, second = (harness.submit(PROMPT, 9, seed=i) for i in range(2))
    harness.run()
    a, b = first.completion.stats, second.completion.stats
    assert a.queue_seconds == 0
    assert a.time_to_first_token == a.prefill_seconds == pytest.approx(1.5)
    assert b.queue_seconds == pytest.approx(a.prefill_seconds + a.decode_seconds)
    assert b.time_to_first_token == pytest.approx(b.queue_seconds + b.prefill_seconds)


def test_figures_count_running_and_waiting_requests() -> None:
    harness = EngineHarness(n_seq_max=2)
    for i in range(5):
        harness.submit(PROMPT, 30, seed=i)
    assert harness.engine.figures().waiting == 5
    harness.engine.step()
    figures = harness.engine.figures()
    assert (figures.running, figures.waiting) == (2, 3)
    harness.run()
    figures = harness.engine.figures()
    assert figures.finished == 5
    assert figures.tokens == 150
    assert 0 < figures.tokens_per_second < 150


@pytest.mark.parametrize("depth", [3, "auto"])
@pytest.mark.parametrize("n_good", [0, 1])
def test_request_makes_no_drafts_after_its_head_failed_and_other_requests_still_do(
    depth: int | str, n_good: int
) -> None:
    harness = EngineHarness(depth=depth, n_seq_max=3, hits=[True])
    draft_chains = harness.context.draft_chains
    left = {0: 10**6, 1: n_good, 2: 10**6}  # number of drafts until the head fails

    def drafts(tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        found = {}
        for seq, (chain, confidences) in draft_chains(tokens, n).items():
            found[seq] = (chain[: left[seq]], confidences[: left[seq]])
            left[seq] -= len(found[seq][0])
        return found

    harness.context.draft_chains = drafts  # type: ignore[method-assign]
    requests = [harness.submit(PROMPT, 30, seed=i) for i in range(3)]
    harness.run()
    harness.check()
    stats = requests[1].draft_stats
    assert sum(stats.accepted_per_position) <= n_good
    assert stats.rounds >= 29 - n_good
    assert depth == "auto" or all(requests[i].draft_stats.rounds < 25 for i in (0, 2))


def test_memory_of_the_engine_does_not_grow_over_a_thousand_requests() -> None:
    rng = Random(0)
    harness = EngineHarness(n_seq_max=8, n_ctx=128, hits=[True, True, False])
    harness.context.sequence_error = lambda seq: NativeError("bad") if rng.random() < 0.002 else None
    submitted = ended = 0
    while ended < 1_000:
        while submitted < 1_000 and len(harness.requests) < 20 and rng.random() < 0.7:
            harness.submit([rng.randrange(50)] * rng.randint(1, 40), rng.randint(1, 12), seed=rng.randrange(9))
            submitted += 1
        if harness.requests and rng.random() < 0.02:
            harness.engine.cancel(rng.choice(harness.requests))
        harness.context.calls.clear()
        harness.context.sampled.clear()
        harness.engine.step()
        for request in [request for request in harness.requests if request.ended]:
            assert request.tokens == expected_tokens(request.sampler.seed, request.prompt, len(request.tokens))
            harness.requests.remove(request)
            ended += 1
    figures = harness.engine.figures()
    assert figures.finished + figures.failed + figures.cancelled == 1_000
    assert (figures.running, figures.waiting) == (0, 0)
    assert figures.failed > 1
    assert figures.cancelled > 4


def test_seeded_tokens_depend_on_seed_and_prefix() -> None:
    assert len({next_token(seed, [1, 2, position]) for seed in range(5) for position in range(5)}) > 5
