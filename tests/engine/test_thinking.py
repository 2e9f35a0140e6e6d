"""Claims about thinking within a budget, on a scripted context: every depth, company, and what breaks steps off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from helpers.engines import Bed
from helpers.scripted import ScriptedModel, next_token
from hypothesis import given
from hypothesis import strategies as st

from pymtp.chat.thinking import Thinking
from pymtp.errors import NativeError

PROMPT = [1, 2, 3]
THINK, THOUGHT, NEWLINES, TOOL_CALL, END = 45, 46, 47, 48, 49
TAGS = {THINK: b"<think>", THOUGHT: b"</think>", NEWLINES: b"\n\n", TOOL_CALL: b"<tool_call>\n<function="}
MESSAGE = (10, 11, 12)
CLOSING = (*MESSAGE, THOUGHT, NEWLINES)


class ThinkingModel(ScriptedModel):
    """Whose vocabulary has the tags of thinking."""

    def token_bytes(self, token: int) -> bytes:
        return TAGS.get(token) or super().token_bytes(token)


def bed(**options: Any) -> Bed:
    made = Bed(**options)
    made.model = ThinkingModel(END)
    return made


def right(prompt: Sequence[int], seed: int, n: int, thinking: Thinking) -> tuple[list[int], int]:
    """The text, token by token, and how many tokens of thinking it has."""
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
            close(thinking.newlines if thinking.waits else ())
        elif within and text[-1] == TOOL_CALL and thinking.calls:
            close(())
        elif within:
            thought += 1
        elif not over and text[-1] == THINK:
            within = True
        elif text[-1] != NEWLINES:
            over = True
    return text[:n], thought


def check(made: Bed) -> None:
    for request in made.requests:
        done, most = request.completion, request.most(made.context.n_ctx)
        text, thought = right(request.prompt, done.seed, most, request.thinking)
        assert done.token_ids == text
        assert done.stats.thinking_tokens == thought
        assert request.thinking.budget is None or thought <= request.thinking.budget
        assert done.finish_reason == ("stop" if text[-1] == END else "length")


_thinkings = st.builds(
    Thinking,
    begun=st.booleans(),
    calls=st.booleans(),
    budget=st.one_of(st.none(), st.integers(0, 12)),
    closing=st.sampled_from([CLOSING, (THOUGHT, NEWLINES), (THOUGHT,)]),
    newlines=st.just((NEWLINES,)),
    waits=st.booleans(),
)
# as thinking_of makes them
thinkings = _thinkings.map(lambda one: replace(one, waits=one.waits and one.begun and one.budget is not None)).map(
    lambda one: replace(one, calls=one.calls and not one.waits)
)
asked = st.tuples(
    thinkings, st.integers(0, 200), st.integers(1, 40), st.lists(st.integers(0, 9), min_size=1, max_size=40)
)


@given(st.lists(asked, min_size=1, max_size=6), st.integers(1, 4), st.sampled_from([0, 1, 3, 7, "auto"]))
def test_a_text_is_the_same_whatever_is_drafted_beside_it_and_its_thinking_within_its_budget(
    each: list[Any], n_seq_max: int, depth: int | str
) -> None:
    made = bed(n_seq_max=n_seq_max, depth=depth, hits=[True, True, False, True, True])
    for thinking, seed, n, prompt in each:
        made.submit(prompt, n, seed=seed, thinking=thinking)
    made.run()
    check(made)


@given(st.lists(asked, min_size=1, max_size=4), st.lists(st.integers(0, 30), max_size=6), st.booleans(), st.data())
def test_a_text_is_the_same_where_launches_are_broken_off(
    each: list[Any], moments: list[int], pauses: bool, data: st.DataObject
) -> None:
    made = bed(n_seq_max=2, depth=3, hits=[True, False, True])
    left = [0, *sorted(moments)]

    def before(what: str, seqs: Sequence[int]) -> None:
        left[0] += 1
        if left[0] in left[1:]:
            raise KeyboardInterrupt

    made.context.before = before
    for thinking, seed, n, prompt in each:
        made.submit(prompt, n, seed=seed, thinking=thinking, ahead=2 if pauses else None)
    for _ in range(10_000):
        if all(request.ended for request in made.requests):
            break
        try:
            made.engine.step()
        except KeyboardInterrupt:
            continue
        for request in made.requests:
            if data.draw(st.booleans()) if len(request.unread) < 3 else True:
                request.unread.clear()
    check(made)


@pytest.mark.parametrize("depth", [0, 3, 7])
@pytest.mark.parametrize("budget", [1, 2, 5, 9])
def test_what_closes_a_thinking_costs_one_launch_and_one_round(depth: int, budget: int) -> None:
    made = bed(depth=depth, hits=[True])
    thinking = Thinking(begun=True, budget=budget, closing=CLOSING)
    seed = next(
        seed for seed in range(99) if not {THOUGHT, END} & set(right(PROMPT * 9, seed, 30, thinking)[0][:budget])
    )
    request = made.submit(PROMPT * 9, budget + len(CLOSING) + 1, seed=seed, thinking=thinking)
    made.run()
    check(made)
    kinds = [what for what, _, n in made.context.launches]
    before = -(-(budget - 1) // (1 + depth))  # rounds of the thinking: the first token comes with the prompt
    assert kinds.count("prefill") == 2 + 1  # the prompt in two pieces
    assert kinds.count("verify") == before
    assert request.completion.stats.rounds == before + 1
    assert request.completion.stats.depths[-1] == 0


def test_texts_that_are_closed_at_once_share_a_launch() -> None:
    made = bed(n_seq_max=3, depth=0)
    for seed in range(3):
        made.submit(PROMPT, 20, seed=seed, thinking=Thinking(begun=True, budget=0, closing=CLOSING))
    made.run()
    check(made)
    assert ("prefill", (0, 1, 2), 3 * len(CLOSING)) in made.context.launches


def test_a_launch_that_fails_as_it_closes_fails_its_texts_alone() -> None:
    made = bed(n_seq_max=2)
    closed = made.submit(PROMPT, 20, thinking=Thinking(begun=True, budget=2, closing=CLOSING))
    other = made.submit([7], 20, seed=1)

    def before(what: str, seqs: Sequence[int]) -> None:
        if what == "prefill" and closed.closes:
            raise NativeError("no memory")

    made.context.before = before
    made.run()
    assert isinstance(closed.error, NativeError)
    assert other.completion.token_ids == right([7], 1, 20, Thinking())[0]


def test_a_text_that_fails_as_it_is_closed_fails_alone() -> None:
    made = bed(n_seq_max=2, depth=0)
    for seed in (0, 1):
        made.submit(PROMPT, 20, seed=seed, thinking=Thinking(begun=True, budget=0, closing=CLOSING))
    made.engine.step()
    made.context.alone_fails = lambda seq: NativeError("no finite logits") if seq == 0 else None
    made.run()
    failed, other = made.requests
    assert isinstance(failed.error, NativeError)
    assert other.completion.token_ids == right(PROMPT, 1, 20, other.thinking)[0]


def test_a_stop_string_within_what_closes_a_thinking_ends_the_text_without_a_launch() -> None:
    made = bed(depth=3)
    request = made.submit(
        PROMPT, 20, seed=1, stop="</think>", thinking=Thinking(begun=True, budget=2, closing=(THOUGHT, NEWLINES))
    )
    made.run()
    n = len(request.tokens)
    assert request.tokens == right(PROMPT, 1, 20, request.thinking)[0][:n]
    assert request.tokens[-1] == THOUGHT
    assert request.completion.finish_reason == "stop"
    assert len([what for what, _, _ in made.context.launches if what == "prefill"]) == 1
    made.submit([*PROMPT, *request.tokens, 5], 3)  # goes on from what the sequence held
    made.run()


@pytest.mark.parametrize("n", range(1, 12))
def test_what_closes_a_thinking_counts_for_max_tokens(n: int) -> None:
    made = bed(depth=7, hits=[True])
    made.submit(PROMPT, n, seed=2, thinking=Thinking(begun=True, budget=3, closing=CLOSING))
    made.run()
    check(made)


@pytest.mark.parametrize("n_ctx", range(4, 20))
def test_what_closes_a_thinking_fits_into_the_context(n_ctx: int) -> None:
    made = bed(depth=3, n_ctx=n_ctx)
    made.submit(PROMPT, 99, seed=2, thinking=Thinking(begun=True, budget=3, closing=CLOSING))
    made.run()
    check(made)
