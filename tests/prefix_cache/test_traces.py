"""Tests of the number of tokens that are prefilled when prompts begin with the same tokens.

Requests are sent one after the other, all at once, as chats, and as traces whose prefixes do not all fit into host
memory.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable

import pytest
from helpers.simulate_prefixes import Path, SimEngine, text

from pymtp.prefix_cache.tree import Checkpoint, KvBlock, RadixNode

# the sizes of the 0.8B shape, in KB: a state is as large as the K and V of 1,400 tokens
CELL, STATE = 14, 19_000


def ask_four(engine: SimEngine, n_shared: int, n_own: int, *, at_once: bool) -> list[int]:
    requests = []
    for i in range(4):
        requests.append(engine.submit(text(1, n_shared) + text(100 + i, n_own), text(200 + i, 64)))
        if not at_once:
            engine.run()
    engine.run()
    return [request.n_prefilled for request in requests]


@pytest.mark.parametrize("alignment", [1, 64])
@pytest.mark.parametrize("n_seq", [1, 2, 4])
def test_sequential_requests_prefill_their_common_prefix_once(n_seq: int, alignment: int) -> None:
    first, second, *others = ask_four(SimEngine(n_seq, alignment=alignment), 2000, 48, at_once=False)
    assert first == 2048
    assert second <= 600
    assert max(others) <= 64


@pytest.mark.parametrize("alignment", [1, 64])
@pytest.mark.parametrize("n_seq", [1, 2, 4])
def test_second_request_shows_the_cache_where_prompts_branch(n_seq: int, alignment: int) -> None:
    first, second, *others = ask_four(SimEngine(n_seq, alignment=alignment), 2000, 300, at_once=False)
    assert first == 2300
    assert second <= 512 + 300
    assert max(others) <= 64 + 300


@pytest.mark.parametrize("alignment", [1, 64])
@pytest.mark.parametrize("n_seq", [1, 2, 4])
@pytest.mark.parametrize("cache_bytes", [6 * STATE + 2400 * CELL, 10**9])
def test_simultaneous_requests_prefill_their_common_prefix_once(n_seq: int, cache_bytes: int, alignment: int) -> None:
    assert sum(ask_four(SimEngine(n_seq, cache_bytes, alignment=alignment), 2000, 48, at_once=True)) <= 2900


def chat(engine: SimEngine, turns: int, *, branch_points: bool, dropped: bool = True) -> list[int]:
    """Run turns of 200 tokens with thinking, which the template may drop. Return the old tokens that each prefills."""
    begins, opened_thinking, past = (7, 8, 9), (11, 12), text(99, 60)
    before: Path = ()
    extra = []
    for turn in range(turns):
        past += (1, 2, 3, *text(1000 + turn, 114), 4, 5)
        prompt = past + begins + opened_thinking
        answer, thinking = text(3000 + turn, 80), text(2000 + turn, 300)
        output = (*thinking, 13, *answer)
        request = engine.submit_and_run(
            prompt, output, branch_points=[len(past) + len(begins)] if branch_points else ()
        )
        known = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
        extra.append(request.n_prefilled - (len(prompt) - known))
        before = prompt + output
        past = past + begins + answer if dropped else before
        past += (6,)
    return extra


@pytest.mark.parametrize("n_seq", [1, 4])
def test_chat_turn_prefills_only_new_tokens(n_seq: int) -> None:
    assert max(chat(SimEngine(n_seq, alignment=64), 10, branch_points=True)) <= 64
    assert max(chat(SimEngine(n_seq, alignment=1), 10, branch_points=True)) == 0
    # the cache does not know before the third turn that the text will be continued
    assert max(chat(SimEngine(n_seq, alignment=1), 10, branch_points=False)[2:]) <= 64
    assert max(chat(SimEngine(n_seq, alignment=1), 10, branch_points=False, dropped=False)) == 0


def test_single_chat_needs_host_memory_for_a_few_states_only() -> None:
    assert max(chat(SimEngine(1, 4 * STATE, alignment=64), 20, branch_points=True)) <= 64


def trace(n_seq: int, share: float, weight: Callable[[int], float], seed: int) -> tuple[float, SimEngine]:
    """Run 200 requests over 12 prefixes of 1,000 tokens, with host memory for a share of the prefixes.

    Returns the engine, after the prefilled tokens as a share of all prompt tokens.
    """
    choose, n_all = random.Random(seed), 0
    prefixes = [text(500 + i, 1000) for i in range(12)]
    engine = SimEngine(n_seq, int(share * 12 * (1000 * CELL + STATE)))
    for i in range(200):
        prefix = choose.choices(prefixes, [weight(k) for k in range(12)])[0]
        prompt = prefix + text(9000 + i, choose.randrange(10, 100))
        engine.submit_and_run(prompt, text(20_000 + i, choose.randrange(5, 50)))
        n_all += len(prompt)
    return engine.context.n_prefilled / n_all, engine


def mean(n_seq: int, share: float, weight: Callable[[int], float]) -> float:
    return sum(trace(n_seq, share, weight, seed)[0] for seed in range(2)) / 2


def test_memory_for_half_of_the_prefixes_saves_most_of_the_prefill() -> None:
    def often(k: int) -> float:
        return 1 / (k + 1)

    assert mean(4, 0.5, often) < 0.35
    assert mean(1, 0.5, often) < 0.4
    assert mean(4, 0.5, lambda k: 1.0) < 0.55
    assert mean(4, 1.2, lambda k: 1.0) < 0.2


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_new_prefixes_replace_those_that_are_no_longer_requested(share: float) -> None:
    engine, choose = SimEngine(2, int(share * 12 * (2000 * CELL + STATE))), random.Random(1)
    for time in range(3):
        prefixes = [text(500 + 100 * time + i, 2000) for i in range(6)]
        n_prefilled = n_all = 0
        for i in range(120):
            prompt = choose.choice(prefixes) + text(9000 + 1000 * time + i, choose.randrange(20, 200))
            request = engine.submit_and_run(prompt, text(i, 50))
            if i >= 60:
                n_prefilled, n_all = n_prefilled + request.n_prefilled, n_all + len(prompt)
        assert n_prefilled < 0.6 * n_all


def test_memory_does_not_grow_with_requests_and_stays_within_the_limit() -> None:
    choose = random.Random(4)
    prefixes = [text(500 + i, 700) for i in range(30)]
    engine = SimEngine(3, 8 * STATE)
    sizes = []
    for i in range(600):
        engine.submit(choose.choice(prefixes) + text(i, choose.randrange(10, 200)), text(i, choose.randrange(30)))
        engine.step()
        if i % 100 == 99:
            engine.run()
            engine.all.clear()
            gc.collect()
            sizes.append(sum(isinstance(one, (RadixNode, KvBlock, Checkpoint)) for one in gc.get_objects()))
            assert engine.context.memory.nbytes == engine.cache.store.tree.nbytes
    assert engine.context.memory.peak <= 8 * STATE
    assert max(sizes[1:]) <= sizes[0] + 60


def test_number_of_calls_of_a_lookup_does_not_grow_with_the_prompt() -> None:
    """Count the Python calls, which must not grow with the prompt: arrays are compared, not single tokens."""
    counts = []
    for n in (5_000, 100_000):
        engine = SimEngine(2)
        engine.submit_and_run(text(1, n))
        prefill = engine.cache.begin(text(1, n) + text(2, 50), [0, 1], (0, 9))
        n_calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal n_calls
            n_calls += 1

        sys.setprofile(count)
        engine.cache.longest_match(prefill.tokens, [0, 1])
        sys.setprofile(None)
        counts.append(n_calls)
    assert counts[1] < 2 * counts[0] < 2000
