"""Tests of thinking budgets: at any depth, in batches and after restarts, over a scripted context without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from helpers.engines import EngineHarness
from helpers.scripted import ScriptedModel, next_token
from hypothesis import given
from hypothesis import strategies as st

from pymtp.engine.text import ThinkingPlan
from pymtp.errors import InvalidRequestError, NativeError
from pymtp.sampling import Sampler

PROMPT = [1, 2, 3]
THINK, THOUGHT, NEWLINES, TOOL_CALL, END = 45, 46, 47, 48, 49
TAGS = {THINK: b"<think>", THOUGHT: b"</think>", NEWLINES: b"\n\n", TOOL_CALL: b"<tool_call>\n<function="}
MESSAGE = (10, 11, 12)
CLOSING = (*MESSAGE, THOUGHT, NEWLINES)


class ThinkingModel(ScriptedModel):
    """A model whose vocabulary has the tags of thinking blocks."""

    def token_bytes(self, token: int) -> bytes:
        return TAGS.get(token) or super().token_bytes(token)


def make_harness(**options: Any) -> EngineHarness:
    harness = EngineHarness(**options)
    harness.model = ThinkingModel(END)
    return harness


def expected(prompt: Sequence[int], seed: int, n: int, thinking: ThinkingPlan) -> tuple[list[int], int]:
    """Return the expected output tokens, and the number of thinking tokens among them."""
    text: list[int] = []
    within, over, thought = thinking.begun, False, 0

    def close(tokens: Sequence[int]) -> None:
        nonlocal within, over
        text.extend(tokens)
        within, over = False, True

    while len(text) < n:
        if within and thought == thinking.budget:
            close(thinking.closing)
            continue
        text.append(next_token(seed, [*prompt, *text]))
        if text[-1] == END:
            break
        if within and text[-1] == THOUGHT:
            close(thinking.newlines if thinking.grammar_waits else ())
        elif within and text[-1] == TOOL_CALL and thinking.call_ends:
            close(())
        elif within:
            thought += 1
        elif not over and text[-1] == THINK:
            within = True
        elif text[-1] != NEWLINES:
            over = True
    return text[:n], thought


def check(harness: EngineHarness) -> None:
    for request in harness.requests:
        done, limit = request.completion, request.max_output_tokens(harness.context.n_ctx)
        text, thought = expected(request.prompt, done.seed, limit, request.thinking)
        assert done.token_ids == text
        assert done.stats.thinking_tokens == thought
        assert request.thinking.budget is None or thought <= request.thinking.budget
        assert done.finish_reason == ("stop" if text[-1] == END else "length")


_thinkings = st.builds(
    ThinkingPlan,
    begun=st.booleans(),
    call_ends=st.booleans(),
    budget=st.one_of(st.none(), st.integers(0, 12)),
    closing=st.sampled_from([CLOSING, (THOUGHT, NEWLINES), (THOUGHT,)]),
    newlines=st.just((NEWLINES,)),
    grammar_waits=st.booleans(),
)
# plans as plan_thinking makes them
thinkings = _thinkings.map(
    lambda one: replace(one, grammar_waits=one.grammar_waits and one.begun and one.budget is not None)
).map(lambda one: replace(one, call_ends=one.call_ends and not one.grammar_waits))
request_plans = st.tuples(
    thinkings, st.integers(0, 200), st.integers(1, 40), st.lists(st.integers(0, 9), min_size=1, max_size=40)
)


@given(st.lists(request_plans, min_size=1, max_size=6), st.integers(1, 4), st.sampled_from([0, 1, 3, 7, "auto"]))
def test_thinking_stays_within_its_budget_at_any_depth_and_batch(
    plans: list[Any], n_seq_max: int, depth: int | str
) -> None:
    harness = make_harness(n_seq_max=n_seq_max, depth=depth, hits=[True, True, False, True, True])
    for thinking, seed, n, prompt in plans:
        harness.submit(prompt, n, seed=seed, thinking=thinking)
    harness.run()
    check(harness)


@given(
    st.lists(request_plans, min_size=1, max_size=4), st.lists(st.integers(0, 30), max_size=6), st.booleans(), st.data()
)
def test_thinking_output_stays_the_same_after_restarts(
    plans: list[Any], restarts: list[int], pauses: bool, data: st.DataObject
) -> None:
    harness = make_harness(n_seq_max=2, depth=3, hits=[True, False, True])
    calls = [0, *sorted(restarts)]

    def before(what: str, seqs: Sequence[int]) -> None:
        calls[0] += 1
        if calls[0] in calls[1:]:
            raise harness.late_cancel()

    harness.context.before = before
    for thinking, seed, n, prompt in plans:
        harness.submit(prompt, n, seed=seed, thinking=thinking, max_unread=2 if pauses else None)
    for _ in range(10_000):
        if all(request.ended for request in harness.requests):
            break
        harness.engine.step()
        for request in harness.requests:
            if data.draw(st.booleans()) if len(request.unread) < 3 else True:
                request.unread.clear()
    check(harness)


@pytest.mark.parametrize("depth", [0, 3, 7])
@pytest.mark.parametrize("budget", [1, 2, 5, 9])
def test_closing_a_thinking_block_takes_one_prefill_and_counts_as_one_round(depth: int, budget: int) -> None:
    harness = make_harness(depth=depth, hits=[True])
    thinking = ThinkingPlan(begun=True, budget=budget, closing=CLOSING)
    seed = next(
        seed for seed in range(99) if not {THOUGHT, END} & set(expected(PROMPT * 9, seed, 30, thinking)[0][:budget])
    )
    request = harness.submit(PROMPT * 9, budget + len(CLOSING) + 1, seed=seed, thinking=thinking)
    harness.run()
    check(harness)
    kinds = [what for what, _, n in harness.context.calls]
    before = -(-(budget - 1) // (1 + depth))  # rounds of thinking; the first token comes from the prefill
    assert kinds.count("prefill") == 2 + 1  # the prompt in two chunks, and the closing tokens
    assert kinds.count("verify") == before
    assert request.completion.stats.rounds == before + 1
    assert request.completion.stats.depths[-1] == 0


def test_piece_with_closing_tokens_has_no_drafts() -> None:
    harness = make_harness(depth=3, hits=[True])
    thinking = ThinkingPlan(begun=True, budget=9, closing=CLOSING)
    request = harness.submit(PROMPT, 30, thinking=thinking, max_unread=1000)
    while not request.ended:
        harness.engine.step()
    check(harness)
    assert any(piece.accepted for piece in request.unread)
    (closing,) = (piece for piece in request.unread if piece.token_ids[: len(MESSAGE)] == list(MESSAGE))
    counts = (closing.drafted, closing.accepted, closing.drafted_by_text, closing.accepted_by_text)
    assert counts == (0, 0, 0, 0)


def test_thinking_blocks_closed_in_the_same_step_share_a_prefill() -> None:
    harness = make_harness(n_seq_max=3, depth=0)
    for seed in range(3):
        harness.submit(PROMPT, 20, seed=seed, thinking=ThinkingPlan(begun=True, budget=0, closing=CLOSING))
    harness.run()
    check(harness)
    assert ("prefill", (0, 1, 2), 3 * len(CLOSING)) in harness.context.calls


def test_failed_prefill_of_closing_tokens_fails_only_their_requests() -> None:
    harness = make_harness(n_seq_max=2)
    closed = harness.submit(PROMPT, 20, thinking=ThinkingPlan(begun=True, budget=2, closing=CLOSING))
    other = harness.submit([7], 20, seed=1)

    def before(what: str, seqs: Sequence[int]) -> None:
        if what == "prefill" and closed.must_close_thinking:
            raise NativeError("no memory")

    harness.context.before = before
    harness.run()
    assert isinstance(closed.error, NativeError)
    assert other.completion.token_ids == expected([7], 1, 20, ThinkingPlan())[0]


def test_request_that_fails_after_its_closing_tokens_does_not_affect_others() -> None:
    harness = make_harness(n_seq_max=2, depth=0)
    for seed in (0, 1):
        harness.submit(PROMPT, 20, seed=seed, thinking=ThinkingPlan(begun=True, budget=0, closing=CLOSING))
    harness.engine.step()
    harness.context.sequence_error = lambda seq: NativeError("no finite logits") if seq == 0 else None
    harness.run()
    failed, other = harness.requests
    assert isinstance(failed.error, NativeError)
    assert other.completion.token_ids == expected(PROMPT, 1, 20, other.thinking)[0]


def test_request_whose_grammar_after_the_thinking_is_refused_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = make_harness(n_seq_max=2, depth=0)
    for seed in (0, 1):
        harness.submit(PROMPT, 20, seed=seed, thinking=ThinkingPlan(begun=True, budget=0, closing=CLOSING))
    harness.engine.step()
    set_sampling = harness.context.set_sampling

    def refuses(sampler: Sampler, seq: int = 0) -> None:
        if seq == 0:
            raise InvalidRequestError("the grammar is not one")
        set_sampling(sampler, seq)

    monkeypatch.setattr(harness.context, "set_sampling", refuses)
    harness.run()
    failed, other = harness.requests
    assert isinstance(failed.error, InvalidRequestError)
    assert other.completion.token_ids == expected(PROMPT, 1, 20, other.thinking)[0]


def test_stop_string_in_the_closing_tokens_ends_the_output_without_a_prefill() -> None:
    harness = make_harness(depth=3)
    request = harness.submit(
        PROMPT, 20, seed=1, stop="</think>", thinking=ThinkingPlan(begun=True, budget=2, closing=(THOUGHT, NEWLINES))
    )
    harness.run()
    n = len(request.tokens)
    assert request.tokens == expected(PROMPT, 1, 20, request.thinking)[0][:n]
    assert request.tokens[-1] == THOUGHT
    assert request.completion.finish_reason == "stop"
    assert len([what for what, _, _ in harness.context.calls if what == "prefill"]) == 1
    harness.submit([*PROMPT, *request.tokens, 5], 3)  # this prompt continues from the contents of the sequence
    harness.run()


@pytest.mark.parametrize("n", range(1, 12))
def test_closing_tokens_count_for_max_tokens(n: int) -> None:
    harness = make_harness(depth=7, hits=[True])
    harness.submit(PROMPT, n, seed=2, thinking=ThinkingPlan(begun=True, budget=3, closing=CLOSING))
    harness.run()
    check(harness)


@pytest.mark.parametrize("n_ctx", range(4, 20))
def test_closing_tokens_fit_into_the_context(n_ctx: int) -> None:
    harness = make_harness(depth=3, n_ctx=n_ctx)
    harness.submit(PROMPT, 99, seed=2, thinking=ThinkingPlan(begun=True, budget=3, closing=CLOSING))
    harness.run()
    check(harness)
