"""Tests of Traffic: the times of requests that arrive at an engine with a scripted context, and at that of an LLM."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest
from helpers.engines import EngineHarness

from pymtp import LLM, SamplingParams
from pymtp.bench.traffic import Traffic, delays, prepare, run_on_engine_thread
from pymtp.engine.request import Request
from pymtp.errors import NativeError


class FakeSleep:
    """A sleep function that moves the scripted context's clock."""

    def __init__(self, harness: EngineHarness) -> None:
        self._context = harness.context
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._context.now += seconds


def traffic(harness: EngineHarness) -> tuple[Traffic, FakeSleep]:
    sleep = FakeSleep(harness)
    return Traffic(harness.engine, harness.context.clock, sleep), sleep


def requests(harness: EngineHarness, n: int, tokens: int = 5) -> list[Callable[[], Request]]:
    return [partial(harness.submit, [1 + i, 2, 3], tokens, ignore_eos=True) for i in range(n)]


def test_traffic_records_the_time_of_each_piece() -> None:
    harness = EngineHarness(depth=0, n_seq_max=2)
    driver, _ = traffic(harness)
    seconds = driver.run(requests(harness, 2), [0.0, 0.0])
    harness.check()
    assert seconds == harness.context.now == sum(driver.step_seconds)
    for text in driver.timings:
        assert len(text.pieces) == len(text.request.tokens) == 5
        assert text.pieces[-1] == text.request.last_piece_time
        assert text.first_token == text.request.completion.stats.time_to_first_token
        assert sum(text.gaps) == pytest.approx(text.request.completion.stats.decode_seconds)


def test_step_without_tokens_adds_no_piece_to_the_timing() -> None:
    harness = EngineHarness(depth=0, n_seq_max=2)
    driver, _ = traffic(harness)
    slow = driver.add(harness.submit([1, 2, 3], 20, ignore_eos=True, max_unread=2))  # nothing reads its tokens
    other = driver.add(harness.submit([1, 2, 3], 20, ignore_eos=True))
    driver.step_until(lambda: other.request.ended)
    assert len(slow.pieces) == len(slow.request.tokens) == 2
    assert len(other.pieces) == 20


def test_time_to_first_token_starts_at_the_due_time_even_during_a_step() -> None:
    harness = EngineHarness(depth=0, n_seq_max=2)
    driver, _ = traffic(harness)
    driver.run(requests(harness, 2), [0.0, 0.5])
    late = driver.timings[1]
    assert late.due == 0.5
    assert late.request.arrival_time > 0.5
    assert late.first_token == late.pieces[0] - 0.5


def test_idle_traffic_sleeps_until_the_next_request_is_due() -> None:
    harness = EngineHarness(depth=0, n_seq_max=2)
    driver, sleep = traffic(harness)
    seconds = driver.run(requests(harness, 2), [0.0, 1000.0])
    assert len(sleep.slept) == 1
    assert driver.timings[1].request.arrival_time == 1000.0
    assert seconds == 1000.0 + driver.timings[1].pieces[-1] - 1000.0
    assert sum(driver.step_seconds) == pytest.approx(seconds - sleep.slept[0])


def test_traffic_raises_the_error_of_a_failed_request() -> None:
    harness = EngineHarness(depth=0, n_seq_max=2)
    driver, _ = traffic(harness)
    harness.context.sequence_error = lambda seq: NativeError("no finite logits") if seq == 1 else None
    with pytest.raises(NativeError, match="no finite logits"):
        driver.run(requests(harness, 2), [0.0, 0.0])


def test_arrival_times_are_a_reproducible_poisson_process_or_all_zero() -> None:
    assert delays(3, None, 0) == [0.0, 0.0, 0.0]
    due = delays(4001, 2.0, 7)
    assert due == delays(4001, 2.0, 7) != delays(4001, 2.0, 8)
    assert due[0] == 0
    gaps = [later - earlier for earlier, later in pairwise(due)]
    assert min(gaps) > 0
    assert mean(gaps) == pytest.approx(0.5, rel=0.06)  # four standard deviations


def test_function_of_a_bench_runs_on_the_engine_thread_and_its_error_is_raised(demo: Path) -> None:
    def fail() -> None:
        raise NativeError("out of memory")

    with LLM(demo, n_ctx=64, n_threads=1) as llm:
        llm.generate("x", SamplingParams(2))
        thread = run_on_engine_thread(llm, threading.current_thread)
        assert thread is not threading.current_thread()
        assert thread is run_on_engine_thread(llm, threading.current_thread)
        with pytest.raises(NativeError, match="out of memory"):
            run_on_engine_thread(llm, fail)
        submit = prepare(llm, [1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True))
        driver = Traffic(llm._engine)
        run_on_engine_thread(llm, lambda: driver.run([submit], [0.0]))
        assert len(driver.timings[0].request.tokens) == 4
