"""Tests of the prefix cache with the shipped model: prefilled tokens, host memory, and outputs that do not change."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from conftest import make_llm
from helpers.holding import check_prefix_cache

from pymtp import LLM, Completion, InvalidRequestError, NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.engine.request import Request, Waiter

FOUR_TOKENS = SamplingParams(4, ignore_eos=True)


def random_tokens(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=n)


DOCUMENT = random_tokens(0, 1000)
QUESTIONS = [random_tokens(i, 48) for i in range(1, 5)]


def ask(
    llm: LLM, tokens: Sequence[int], params: SamplingParams = FOUR_TOKENS, branch_points: Sequence[int] = ()
) -> Completion:
    waiter = Waiter()
    request = Request(llm.model, list(tokens), params, waiter, branch_points=tuple(branch_points))
    llm._engine.submit(request)
    wait(llm, waiter)
    llm._engine_thread.call(lambda: check_prefix_cache(llm._engine))
    return request.completion


def wait(llm: LLM, waiter: Waiter) -> None:
    llm._engine_thread.wake()
    llm._engine_thread.wait(waiter, [], lambda: not waiter.n_unfinished)


def count_prefilled(llm: LLM, call: Callable[[], object]) -> int:
    """Return the number of prompt tokens that a call prefills."""
    before = llm.figures().read
    call()
    return llm.figures().read - before


# ── Prefilled tokens ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_third_prompt_continues_where_the_first_two_prompts_branched(
    new_llm: Callable[..., LLM], n_seq_max: int
) -> None:
    llm = new_llm(n_ctx=1280, n_seq_max=n_seq_max)
    prefilled = [count_prefilled(llm, lambda own=own: ask(llm, DOCUMENT + own)) for own in QUESTIONS]  # type: ignore[misc]
    assert prefilled[0] == 1048
    assert prefilled[1] <= 600
    assert max(prefilled[2:]) <= 64
    figures = llm.figures().prefixes
    assert (figures.lookups, figures.hits) == (4, 3)
    assert figures.found == sum(1048 - n for n in prefilled)


def test_simultaneous_prompts_prefill_their_common_prefix_once(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(n_ctx=1280, n_seq_max=4)
    completions: list[Completion] = []
    prompts = [DOCUMENT + own for own in QUESTIONS]
    assert count_prefilled(llm, lambda: completions.extend(llm.generate(prompts, FOUR_TOKENS))) <= 1900
    assert sum(1048 - one.stats.cached_tokens for one in completions) <= 1900
    llm._engine_thread.call(lambda: check_prefix_cache(llm._engine))


@pytest.mark.parametrize("marked", [True, False])
def test_chat_turn_prefills_only_new_tokens_if_thinking_is_dropped(new_llm: Callable[..., LLM], marked: bool) -> None:
    llm = new_llm(n_ctx=2560)
    past, begins, thinks = random_tokens(99, 60), [7, 8, 9], [11, 12]
    before: list[int] = []
    for turn in range(6):
        past = [*past, 1, 2, 3, *random_tokens(1000 + turn, 150), 4, 5]
        prompt = past + begins + thinks
        known = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
        completions: list[Completion] = []
        branch_points = [len(past) + len(begins)] if marked else []
        params = SamplingParams(50, ignore_eos=True)
        n = count_prefilled(llm, lambda: completions.append(ask(llm, prompt, params, branch_points)))  # noqa: B023
        if marked or turn > 1:  # before, the cache does not know that the text will be continued
            assert n <= len(prompt) - known + 64
        before = prompt + completions[0].token_ids
        past = past + begins + completions[0].token_ids[20:]  # the template drops the thinking of earlier turns


def test_completions_of_one_prompt_prefill_it_once_even_if_they_wait_for_a_sequence(
    new_llm: Callable[..., LLM],
) -> None:
    llm = new_llm(n_seq_max=2)
    assert count_prefilled(llm, lambda: llm.generate(DOCUMENT[:600], SamplingParams(8, 1.0, n=6))) == 600


@pytest.mark.parametrize("cache_bytes", [0, None])
def test_prefix_cache_adds_no_decode_calls_to_a_prompt_without_a_cached_prefix(
    new_llm: Callable[..., LLM], cache_bytes: int | None
) -> None:
    on, off = new_llm(n_ctx=1280, cache_bytes=cache_bytes), new_llm(n_ctx=1280, cache_prompt=False)
    for seed, n in enumerate((30, 100, 600, 1100)):
        n_decodes = []
        for llm in (on, off):
            before = llm.context.counters
            ask(llm, random_tokens(seed, n), SamplingParams(1))
            n_decodes.append(llm.context.counters.target_decodes - before.target_decodes)
        assert n_decodes[0] == n_decodes[1]


# ── Host memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("states", [0, 1, 8])
def test_host_memory_stays_within_the_limit(new_llm: Callable[..., LLM], states: int) -> None:
    llm = new_llm(n_ctx=1024, n_seq_max=2)
    limit = states * llm.context.state.max_bytes + 300 * bool(states) * llm.context.state.cell_bytes
    llm = new_llm(n_ctx=1024, n_seq_max=2, cache_bytes=limit)
    pick = random.Random(states)
    for _ in range(9):
        prefix = random_tokens(pick.randrange(4), pick.choice([80, 300, 500]))
        llm.generate(
            [prefix + random_tokens(pick.randrange(9, 99), pick.randrange(1, 200)) for _ in range(2)], FOUR_TOKENS
        )
        llm._engine_thread.call(lambda: check_prefix_cache(llm._engine))
        figures = llm.figures().prefixes
        assert figures.nbytes <= limit
    assert bool(figures.evicted) == bool(states)
    assert (figures.nbytes == 0) == (states == 0)


def test_prompt_continues_from_a_sequence_when_cache_bytes_is_0(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(cache_bytes=0, n_seq_max=2)
    first = ask(llm, DOCUMENT[:500])
    ask(llm, random_tokens(3, 200))
    assert ask(llm, DOCUMENT[:500] + first.token_ids).stats.cached_tokens == 503
    assert llm.context.counters.saved_bytes == 0


def test_close_frees_host_memory() -> None:
    llm = make_llm()
    ask(llm, DOCUMENT[:600])
    states = [weakref.ref(node.checkpoint.state) for node in llm._engine.prefix_cache.store.tree.checkpoints]
    assert states
    gc.disable()
    try:
        llm.close()
        assert all(state() is None for state in states)
    finally:
        gc.enable()


@pytest.mark.parametrize("cache_bytes", [-1, 1.5, "1G", True])
def test_invalid_cache_bytes_is_refused(cache_bytes: Any) -> None:
    with pytest.raises(InvalidRequestError, match="cache_bytes"):
        make_llm(cache_bytes=cache_bytes)


# ── Same outputs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def outputs(completion: Completion) -> tuple[object, ...]:
    """Return all outputs and statistics except times, including the acceptance of drafts."""
    stats = completion.stats
    return completion.token_ids, completion.logprobs, stats.depths, stats.accepted_per_position, stats.rounds


@pytest.mark.parametrize("states", [0, 4, 10**6])
@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_cache_changes_no_text_logprobs_or_acceptance(new_llm: Callable[..., LLM], states: int, n_seq_max: int) -> None:
    cold = new_llm(cache_prompt=False, n_ubatch=128)
    llm = new_llm(n_seq_max=n_seq_max, n_ubatch=128, cache_bytes=states * cold.context.state.max_bytes)
    pick = random.Random(states + n_seq_max)
    texts: list[list[int]] = []
    for turn in range(10 if n_seq_max == 1 else 4):
        prompts = []
        for _ in range(n_seq_max):
            prefix = pick.choice(texts) if texts and pick.random() < 0.7 else random_tokens(pick.randrange(3), 300)
            prompts.append(
                prefix[: pick.choice([90, 128, 150, 255, 325])]
                + random_tokens(pick.randrange(50), pick.randrange(1, 90))
            )
        params = [SamplingParams(25, pick.choice([0.0, 1.0]), seed=turn, logprobs=3) for _ in prompts]
        completions = llm.generate(prompts, params)
        llm._engine_thread.call(lambda: check_prefix_cache(llm._engine))
        for prompt, own_params, completion in zip(prompts, params, completions, strict=True):
            assert outputs(completion) == outputs(cold.generate(prompt, own_params))
            texts.append(prompt + completion.token_ids)
    if states:
        assert llm.figures().prefixes.hits > 1


class Faults:
    """Makes a call of a context fail as native calls do: the sequences that the call would change become empty."""

    SAVING = ("copy_cells", "save", "save_cells", "load", "load_cells")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
        self.left: int | None = None
        self.kind: type[BaseException] = NativeError
        for part, names in ((context, ("prefill_batch", "verify_chains", "copy")), (context.state, self.SAVING)):
            for name in names:
                monkeypatch.setattr(part, name, self._failing(context, name, getattr(part, name)))

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


def test_cached_prompt_tokens_are_added_to_the_draft_vocabulary(new_llm: Callable[..., LLM]) -> None:
    vocabularies, n_cached = [], []
    for cached in (True, False):
        llm = new_llm(n_seq_max=2, draft_tokens=2, draft_vocab=128, cache_prompt=cached)
        first = ask(llm, random_tokens(1, 100))
        ask(llm, range(1000, 1900))
        n_cached.append(ask(llm, [*first.prompt_token_ids, *first.token_ids]).stats.cached_tokens)
        vocabularies.append({token for token in range(llm.model.n_vocab) if llm.context.drafts_over(token)})
    assert n_cached == [103, 0]
    assert vocabularies[0] == vocabularies[1]


@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_failures_keep_cache_records_right_and_texts_unchanged(
    new_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, n_seq_max: int
) -> None:
    cold = new_llm(cache_prompt=False)
    llm = new_llm(n_seq_max=n_seq_max, cache_bytes=5 * cold.context.state.max_bytes)
    faults, pick = Faults(monkeypatch, llm.context), random.Random(n_seq_max)
    for turn in range(9):
        waiter = Waiter()
        prompts = [
            random_tokens(pick.randrange(3), pick.choice([100, 300])) + random_tokens(pick.randrange(9), 40)
            for _ in range(3)
        ]
        params = SamplingParams(12, 0.8, seed=turn)
        faults.left, faults.kind = pick.randrange(12), pick.choice([NativeError, MemoryError])
        requests = llm._submit(prompts, params, waiter)
        wait(llm, waiter)
        if turn % 3 == 0:
            llm._engine.cancel(pick.choice(requests))
        wait(llm, waiter)
        llm._engine_thread.call(lambda: check_prefix_cache(llm._engine))
        faults.left = None
        completions = [request.completion for request in requests if request.finish_reason == "length"]
        for completion in completions:
            assert completion.token_ids == cold.generate(completion.prompt_token_ids, params).token_ids
    assert llm.figures().finished > 9


@pytest.mark.parametrize(
    "use",
    [
        lambda context: context.clear(),
        lambda context: (context.clear(), context.prefill(DOCUMENT[:300])),
        lambda context: (context.clear(), context.prefill(random_tokens(9, 500))),
        lambda context: context.prefill(random_tokens(9, 50)),
    ],
)
@pytest.mark.parametrize("cache_bytes", [0, None])
def test_using_the_context_between_requests_changes_no_text(
    new_llm: Callable[..., LLM], use: Callable[[Context], object], cache_bytes: int | None
) -> None:
    llm = new_llm(n_ctx=1024, cache_bytes=cache_bytes)
    expected = new_llm(n_ctx=1024, cache_prompt=False).generate(DOCUMENT[:400], FOUR_TOKENS)
    ask(llm, DOCUMENT[:400])
    use(llm.context)
    for _ in range(2):
        completion = ask(llm, DOCUMENT[:400])
        assert (completion.token_ids, completion.text) == (expected.token_ids, expected.text)
