"""How much is read of prompts that share their beginnings: requests one after the other and at once, chats, and traces
with a budget that is too small for all."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable

import pytest
from helpers.simulate_prefixes import Path, SimEngine, text

from pymtp.prefix_cache.tree import Block, Checkpoint, Node

# as of the 0.8B shape, in KB: a state is as large as the K and V of 1,400 tokens
CELL, STATE = 14, 19_000


def ask_four(engine: SimEngine, n_shared: int, n_own: int, *, at_once: bool) -> list[int]:
    asked = []
    for i in range(4):
        asked.append(engine.ask(text(1, n_shared) + text(100 + i, n_own), text(200 + i, 64)))
        if not at_once:
            engine.run()
    engine.run()
    return [one.n_read for one in asked]


@pytest.mark.parametrize("grain", [1, 64])
@pytest.mark.parametrize("n_seq", [1, 2, 4])
def test_four_requests_one_after_the_other_read_their_shared_tokens_once(n_seq: int, grain: int) -> None:
    first, second, *others = ask_four(SimEngine(n_seq, grain=grain), 2000, 48, at_once=False)
    assert first == 2048
    assert second <= 600
    assert max(others) <= 64


@pytest.mark.parametrize("grain", [1, 64])
@pytest.mark.parametrize("n_seq", [1, 2, 4])
def test_where_they_part_is_learnt_from_the_second(n_seq: int, grain: int) -> None:
    first, second, *others = ask_four(SimEngine(n_seq, grain=grain), 2000, 300, at_once=False)
    assert first == 2300
    assert second <= 512 + 300
    assert max(others) <= 64 + 300


@pytest.mark.parametrize("grain", [1, 64])
@pytest.mark.parametrize("n_seq", [1, 2, 4])
@pytest.mark.parametrize("cache_bytes", [6 * STATE + 2400 * CELL, 10**9])
def test_the_same_four_at_once_read_them_once(n_seq: int, cache_bytes: int, grain: int) -> None:
    assert sum(ask_four(SimEngine(n_seq, cache_bytes, grain=grain), 2000, 48, at_once=True)) <= 2900


def chat(engine: SimEngine, turns: int, *, marks: bool, dropped: bool = True) -> list[int]:
    """Turns of 200 tokens, with thinking that the template drops. Tokens read in each beyond those that are new."""
    begins, thinks, past = (7, 8, 9), (11, 12), text(99, 60)
    before: Path = ()
    beyond = []
    for turn in range(turns):
        past += (1, 2, 3, *text(1000 + turn, 114), 4, 5)
        prompt = past + begins + thinks
        answer, thinking = text(3000 + turn, 80), text(2000 + turn, 300)
        written = (*thinking, 13, *answer)
        asked = engine.ask_and_run(prompt, written, marks=[len(past) + len(begins)] if marks else ())
        known = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
        beyond.append(asked.n_read - (len(prompt) - known))
        before = prompt + written
        past = past + begins + answer if dropped else before
        past += (6,)
    return beyond


@pytest.mark.parametrize("n_seq", [1, 4])
def test_a_turn_reads_what_is_new(n_seq: int) -> None:
    assert max(chat(SimEngine(n_seq, grain=64), 20, marks=True)) <= 64
    assert max(chat(SimEngine(n_seq, grain=1), 20, marks=True)) == 0
    assert max(chat(SimEngine(n_seq, grain=1), 20, marks=False)[2:]) <= 64  # by then it shows that it goes on
    assert max(chat(SimEngine(n_seq, grain=1), 20, marks=False, dropped=False)) == 0


def test_a_chat_by_itself_needs_host_memory_for_a_few_states_only() -> None:
    assert max(chat(SimEngine(1, 4 * STATE, grain=64), 20, marks=True)) <= 64


def trace(n_seq: int, share: float, weight: Callable[[int], float], seed: int) -> tuple[float, SimEngine]:
    """200 requests over 12 prefixes of 2,000 tokens, with a budget for a share of them. The tokens read, of those of
    all prompts."""
    choose, n_all = random.Random(seed), 0
    prefixes = [text(500 + i, 2000) for i in range(12)]
    engine = SimEngine(n_seq, int(share * 12 * (2000 * CELL + STATE)))
    for i in range(200):
        prefix = choose.choices(prefixes, [weight(k) for k in range(12)])[0]
        prompt = prefix + text(9000 + i, choose.randrange(20, 200))
        engine.ask_and_run(prompt, text(20_000 + i, choose.randrange(5, 100)))
        n_all += len(prompt)
    return engine.context.n_read / n_all, engine


def mean(n_seq: int, share: float, weight: Callable[[int], float]) -> float:
    return sum(trace(n_seq, share, weight, seed)[0] for seed in range(2)) / 2


def test_a_budget_for_half_of_the_prefixes_saves_most_of_the_reading() -> None:
    def often(k: int) -> float:
        return 1 / (k + 1)

    assert mean(4, 0.5, often) < 0.35
    assert mean(1, 0.5, often) < 0.4
    assert mean(4, 0.5, lambda k: 1.0) < 0.55
    assert mean(4, 1.2, lambda k: 1.0) < 0.2


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_prefixes_that_come_up_take_the_place_of_those_that_were_asked_for_before(share: float) -> None:
    engine, choose = SimEngine(2, int(share * 12 * (2000 * CELL + STATE))), random.Random(1)
    for time in range(3):
        prefixes = [text(500 + 100 * time + i, 2000) for i in range(6)]
        read = asked = 0
        for i in range(120):
            prompt = choose.choice(prefixes) + text(9000 + 1000 * time + i, choose.randrange(20, 200))
            n_read = engine.ask_and_run(prompt, text(i, 50)).n_read
            if i >= 60:
                read, asked = read + n_read, asked + len(prompt)
        assert read < 0.6 * asked


def test_memory_is_flat_and_within_the_budget() -> None:
    choose = random.Random(4)
    prefixes = [text(500 + i, 700) for i in range(30)]
    engine = SimEngine(3, 8 * STATE)
    sizes = []
    for i in range(600):
        engine.ask(choose.choice(prefixes) + text(i, choose.randrange(10, 200)), text(i, choose.randrange(30)))
        engine.step()
        if i % 100 == 99:
            engine.run()
            engine.all.clear()
            gc.collect()
            sizes.append(sum(isinstance(one, (Node, Block, Checkpoint)) for one in gc.get_objects()))
            assert engine.context.memory.nbytes == engine.prefixes.store.tree.nbytes
    assert engine.context.memory.most <= 8 * STATE
    assert max(sizes[1:]) <= sizes[0] + 60


def test_a_long_prompt_is_looked_up_in_few_comparisons() -> None:
    """Spans of tokens, not tokens, are compared: calls of Python do not grow with the prompt."""
    counts = []
    for n in (5_000, 100_000):
        engine = SimEngine(2)
        engine.ask_and_run(text(1, n))
        reader = engine.prefixes.open(text(1, n) + text(2, 50), [0, 1], (0, 9))
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        engine.prefixes.place(reader.tokens, [0, 1])
        sys.setprofile(None)
        counts.append(calls)
    assert counts[1] < 2 * counts[0] < 2000
