"""Claims about prompts that go on from each other, with the model that ships: what is read; that nothing changes."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from conftest import make_llm
from helpers.holding import check_held

from pymtp import LLM, Completion, InvalidRequestError, NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.engine.request import Caller, Request

FEW = SamplingParams(4, ignore_eos=True)


def some(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=n)


DOCUMENT = some(0, 2000)
QUESTIONS = [some(i, 48) for i in range(1, 5)]


def ask(llm: LLM, tokens: Sequence[int], params: SamplingParams = FEW, marks: Sequence[int] = ()) -> Completion:
    caller = Caller()
    request = Request(llm.model, list(tokens), params, caller, marks=tuple(marks))
    llm.engine.submit(request)
    wait(llm, caller)
    check_held(llm.engine)
    return request.completion


def wait(llm: LLM, caller: Caller) -> None:
    llm.turns.wait(llm, caller, [], lambda: not caller.unended)


def read_by(llm: LLM, call: Callable[[], object]) -> int:
    before = llm.figures().read
    call()
    return llm.figures().read - before


# ── What is read ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_of_four_prompts_that_share_2000_tokens_the_third_and_fourth_are_read_from_where_they_part(
    new_llm: Callable[..., LLM], n_seq_max: int
) -> None:
    llm = new_llm(n_ctx=2304, n_seq_max=n_seq_max)
    read = [read_by(llm, lambda own=own: ask(llm, DOCUMENT + own)) for own in QUESTIONS]  # type: ignore[misc]
    assert read[0] == 2048
    assert read[1] <= 600
    assert max(read[2:]) <= 64
    figures = llm.figures().prefixes
    assert (figures.lookups, figures.hits) == (4, 3)
    assert figures.found == sum(2048 - n for n in read)


def test_the_same_four_at_once_are_read_once(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(n_ctx=2304, n_seq_max=4)
    done: list[Completion] = []
    prompts = [DOCUMENT + own for own in QUESTIONS]
    assert read_by(llm, lambda: done.extend(llm.generate(prompts, FEW))) <= 2900
    assert sum(2048 - one.stats.cached_tokens for one in done) <= 2900
    check_held(llm.engine)


@pytest.mark.parametrize("marked", [True, False])
def test_a_turn_of_a_chat_whose_thinking_is_dropped_reads_what_is_new(
    new_llm: Callable[..., LLM], marked: bool
) -> None:
    llm = new_llm(n_ctx=5120)
    past, begins, thinks = some(99, 60), [7, 8, 9], [11, 12]
    before: list[int] = []
    for turn in range(20):
        past = [*past, 1, 2, 3, *some(1000 + turn, 150), 4, 5]
        prompt = past + begins + thinks
        known = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
        asked: list[Completion] = []
        marks = [len(past) + len(begins)] if marked else []
        n = read_by(llm, lambda: asked.append(ask(llm, prompt, SamplingParams(50, ignore_eos=True), marks)))  # noqa: B023
        if marked or turn > 1:  # by then it shows that it goes on
            assert n <= len(prompt) - known + 64
        before = prompt + asked[0].token_ids
        past = past + begins + asked[0].token_ids[20:]  # what it thought is dropped


def test_completions_of_a_prompt_read_it_once_though_they_wait_for_a_place(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(n_seq_max=2)
    assert read_by(llm, lambda: llm.generate(DOCUMENT[:600], SamplingParams(8, 1.0, n=6))) == 600


@pytest.mark.parametrize("cache_bytes", [0, None])
def test_a_prompt_that_shares_nothing_is_read_in_as_few_launches(
    new_llm: Callable[..., LLM], cache_bytes: int | None
) -> None:
    on, off = new_llm(n_ctx=2304, cache_bytes=cache_bytes), new_llm(n_ctx=2304, cache_prompt=False)
    for seed, n in enumerate((30, 100, 600, 2096)):
        taken = []
        for llm in (on, off):
            before = llm.context.counters
            ask(llm, some(seed, n), SamplingParams(1))
            taken.append(llm.context.counters.target_decodes - before.target_decodes)
        assert taken[0] == taken[1]


# ── What it takes ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("states", [0, 1, 3, 8])
def test_host_memory_stays_within_the_budget(new_llm: Callable[..., LLM], states: int) -> None:
    llm = new_llm(n_ctx=1024, n_seq_max=2)
    budget = states * llm.context.state_bytes + 300 * bool(states) * llm.context.cell_bytes
    llm = new_llm(n_ctx=1024, n_seq_max=2, cache_bytes=budget)
    pick = random.Random(states)
    for _ in range(30):
        trunk = some(pick.randrange(4), pick.choice([80, 300, 500]))
        llm.generate([trunk + some(pick.randrange(9, 99), pick.randrange(1, 200)) for _ in range(2)], FEW)
        check_held(llm.engine)
        figures = llm.figures().prefixes
        assert figures.nbytes <= budget
    assert bool(figures.evicted) == bool(states)
    assert (figures.nbytes == 0) == (states == 0)


def test_without_host_memory_a_prompt_goes_on_from_what_sequences_hold(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(cache_bytes=0, n_seq_max=2)
    first = ask(llm, DOCUMENT[:500])
    ask(llm, some(3, 200))
    assert ask(llm, DOCUMENT[:500] + first.token_ids).stats.cached_tokens == 503
    assert llm.context.counters.saved_bytes == 0


def test_an_llm_that_is_closed_gives_host_memory_back() -> None:
    llm = make_llm()
    ask(llm, DOCUMENT[:600])
    states = [weakref.ref(node.checkpoint.state) for node in llm.engine.prefixes.store.tree.checkpoints]
    assert states
    gc.disable()
    try:
        llm.close()
        assert all(state() is None for state in states)
    finally:
        gc.enable()


@pytest.mark.parametrize("cache_bytes", [-1, 1.5, "1G", True])
def test_what_is_no_number_of_bytes_is_refused(cache_bytes: Any) -> None:
    with pytest.raises(InvalidRequestError, match="cache_bytes"):
        make_llm(cache_bytes=cache_bytes)


# ── That nothing changes ──────────────────────────────────────────────────────────────────────────────────────────────


def what_came(done: Completion) -> tuple[object, ...]:
    """Everything but times: the drafts' fate, too."""
    stats = done.stats
    return done.token_ids, done.logprobs, stats.depths, stats.accepted_per_position, stats.rounds


@pytest.mark.parametrize("states", [0, 4, 10**6])
@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_texts_logprobs_and_acceptance_are_those_of_prompts_that_are_read(
    new_llm: Callable[..., LLM], states: int, n_seq_max: int
) -> None:
    cold = new_llm(cache_prompt=False)
    llm = new_llm(n_seq_max=n_seq_max, cache_bytes=states * cold.context.state_bytes)
    pick = random.Random(states + n_seq_max)
    asked: list[list[int]] = []
    for turn in range(12):
        prompts = []
        for _ in range(n_seq_max):
            trunk = pick.choice(asked) if asked and pick.random() < 0.7 else some(pick.randrange(3), 600)
            prompts.append(
                trunk[: pick.choice([90, 256, 300, 511, 650])] + some(pick.randrange(50), pick.randrange(1, 90))
            )
        params = [SamplingParams(25, pick.choice([0.0, 1.0]), seed=turn, logprobs=3) for _ in prompts]
        done = llm.generate(prompts, params)
        check_held(llm.engine)
        for prompt, its, one in zip(prompts, params, done, strict=True):
            assert what_came(one) == what_came(cold.generate(prompt, its))
            asked.append(prompt + one.token_ids)
    if states:
        assert llm.figures().prefixes.hits > 3


class Faults:
    """Calls of a context that fail, as native ones do: what they change is empty then."""

    SAVING = ("copy_cells", "save_state", "save_cells", "load_state", "load_cells")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
        self.left: int | None = None
        self.kind: type[BaseException] = NativeError
        for name in ("prefill_batch", "verify_chains", "copy", *self.SAVING):
            monkeypatch.setattr(context, name, self._failing(context, name, getattr(context, name)))

    def _failing(self, context: Context, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    self.left = None
                    changed = {"copy": arguments[1:2], "copy_cells": arguments[1:2]}.get(name, arguments[:1])
                    for seq in changed[0] if isinstance(changed[0], dict) else changed:
                        if not name.startswith("save"):
                            context.clear(seq)
                    raise self.kind("on purpose")
            return original(*arguments, **keywords)

        return call


def test_tokens_of_a_prompt_that_is_not_read_again_are_drafted(new_llm: Callable[..., LLM]) -> None:
    sets, found = [], []
    for cached in (True, False):
        llm = new_llm(n_seq_max=2, draft_tokens=2, draft_vocab=128, cache_prompt=cached)
        first = ask(llm, some(1, 100))
        ask(llm, range(1000, 1900))
        found.append(ask(llm, [*first.prompt_token_ids, *first.token_ids]).stats.cached_tokens)
        sets.append({token for token in range(llm.model.n_vocab) if llm.context.drafts_over(token)})
    assert found == [103, 0]
    assert sets[0] == sets[1]


@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_whatever_fails_sequences_hold_what_they_are_known_to_hold_and_texts_stay(
    new_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, n_seq_max: int
) -> None:
    cold = new_llm(cache_prompt=False)
    llm = new_llm(n_seq_max=n_seq_max, cache_bytes=5 * cold.context.state_bytes)
    faults, pick = Faults(monkeypatch, llm.context), random.Random(n_seq_max)
    for turn in range(40):
        caller = Caller()
        prompts = [some(pick.randrange(3), pick.choice([100, 300])) + some(pick.randrange(9), 40) for _ in range(3)]
        params = SamplingParams(12, 0.8, seed=turn)
        faults.left, faults.kind = pick.randrange(12), pick.choice([NativeError, KeyboardInterrupt])
        requests = llm.requests(prompts, params, caller)
        with suppress(KeyboardInterrupt):
            wait(llm, caller)
        if turn % 3 == 0:
            llm.engine.cancel(pick.choice(requests))
        wait(llm, caller)
        check_held(llm.engine)
        faults.left = None
        done = [request.completion for request in requests if request.reason == "length"]
        for one in done:
            assert one.token_ids == cold.generate(one.prompt_token_ids, params).token_ids
    assert llm.figures().finished > 40


@pytest.mark.parametrize(
    "use",
    [
        lambda context: context.clear(),
        lambda context: (context.clear(), context.prefill(DOCUMENT[:300])),
        lambda context: (context.clear(), context.prefill(some(9, 500))),
        lambda context: context.prefill(some(9, 50)),
    ],
)
@pytest.mark.parametrize("cache_bytes", [0, None])
def test_who_uses_the_context_between_requests_changes_no_text(
    new_llm: Callable[..., LLM], use: Callable[[Context], object], cache_bytes: int | None
) -> None:
    llm = new_llm(n_ctx=1024, cache_bytes=cache_bytes)
    expected = new_llm(n_ctx=1024, cache_prompt=False).generate(DOCUMENT[:400], FEW)
    ask(llm, DOCUMENT[:400])
    use(llm.context)
    for _ in range(2):
        found = ask(llm, DOCUMENT[:400])
        assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
