"""Tests of the warm-up: when an AsyncLLM times drafts and verifications for draft_tokens="auto"."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pymtp
from pymtp.context.context import Context
from pymtp.errors import NativeError
from pymtp.options import LLMOptions


async def until(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never became true")


PARAMS = pymtp.SamplingParams(max_tokens=8)


@pytest.fixture(autouse=True)
def steady_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide changes of the number of threads: what is measured during one is not kept, and other programs cause them."""
    monkeypatch.setattr("pymtp.drafting.warm_up.thread_changes", lambda: 0)


def test_async_llm_warms_up_before_the_first_request_and_not_in_its_constructor(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_SECONDS", "MAX_REQUEST_DELAY"):  # a busy machine would leave out rounds
        monkeypatch.setattr(f"pymtp.drafting.warm_up.{limit}", 60.0)

    async def use() -> None:
        with pymtp.Model(demo) as model:
            async with pymtp.AsyncLLM(model, n_ctx=256, n_seq_max=2) as llm:
                await until(lambda: model.measured_costs)
                ((kind, _),) = model.measured_costs
                assert ("n_seq_max", 2) in kind
                (costs,) = model.measured_costs.values()
                assert {n for n, _ in costs} == {1, 2}
                decodes = llm.llm.context.counters.target_decodes
                text = await llm.generate("def f(", PARAMS)
                # One of the decode calls is the prefill
                assert text.stats.rounds == llm.llm.context.counters.target_decodes - decodes - 1
            with pymtp.LLM(model, n_ctx=256) as alone:
                assert text.text == alone.generate("def f(", PARAMS).text

    asyncio.run(use())


@pytest.mark.parametrize("way", ["ask", "ask from a thread", "cancel", "close", "close its LLM", "fail"])
def test_calls_during_the_warm_up_wait_for_at_most_one_timed_call(
    demo: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    verify_chains = Context.verify_chains
    forget_chosen = Context.forget_chosen
    launched, asked, ended = threading.Event(), threading.Event(), threading.Event()
    timed: list[int] = []

    def held(context: Context, chains: Mapping[int, Sequence[int]]) -> Any:
        if not ended.is_set():  # later calls are rounds of the request
            timed.append(len(chains[0]))
        launched.set()
        assert asked.wait(60)
        if way == "fail":
            raise NativeError("out of memory")
        return verify_chains(context, chains)

    def end(context: Context) -> None:
        if timed:
            ended.set()
        forget_chosen(context)

    async def use() -> None:
        monkeypatch.setattr(Context, "verify_chains", held)
        monkeypatch.setattr(Context, "forget_chosen", end)  # the last call of the warm-up
        llm = pymtp.AsyncLLM(demo, n_ctx=256, n_threads=1)
        await until(launched.is_set)
        if way == "close":
            closing = asyncio.create_task(llm.close())
            await until(lambda: llm._closed)
            asked.set()
            await closing
        elif way == "close its LLM":
            closing = asyncio.create_task(asyncio.to_thread(llm.llm.close))
            await until(lambda: llm.llm.closed)
            asked.set()
            await closing
        elif way == "cancel":
            llm.llm.cancel()
            asked.set()
            await until(lambda: not llm._engine_thread._busy)
        elif way.startswith("ask"):
            in_thread = partial(asyncio.to_thread, llm.llm.generate)
            asking = asyncio.create_task((llm.generate if way == "ask" else in_thread)("def f(", PARAMS))
            await until(lambda: not llm.llm._engine.idle)
            asked.set()
            await asking
        asked.set()
        await until(lambda: not llm._engine_thread._busy)
        assert (timed, llm.llm.closed) == ([1], way.startswith("close"))
        monkeypatch.undo()
        if not way.startswith("close"):
            assert llm.llm.context.tokens() == [] or way.startswith("ask")
            assert (await llm.generate("def f(", PARAMS)).text == pymtp.generate("def f(", max_tokens=8).text
        await llm.close()

    asyncio.run(use())


def later(model: pymtp.Model | Path) -> pymtp.LLM:
    """Make an LLM that has not warmed up."""
    return pymtp.LLM.from_options(LLMOptions(model, n_ctx=256), warm_up_later=True)


def test_warm_up_does_not_run_if_sequences_hold_tokens(demo: Path) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model, later(model) as llm:
            llm.context.prefill([1, 2, 3])
            async with pymtp.AsyncLLM(llm):
                await until(lambda: llm._engine_thread._warm_up.done and not llm._engine_thread._busy)
            assert (llm.context.tokens(), model.measured_costs) == ([1, 2, 3], {})

    asyncio.run(use())


def test_warm_up_does_not_run_after_a_request(demo: Path) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model, later(model) as llm:
            text = llm.generate("def f(", PARAMS).text
            llm.context.clear()
            async with pymtp.AsyncLLM(llm) as made:
                assert llm._engine_thread._warm_up.done
                assert (await made.generate("def f(", PARAMS)).text == text
            assert model.measured_costs == {}

    asyncio.run(use())


def test_failed_warm_up_leaves_the_context_empty(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[list[int]] = []

    def fails(*_: object) -> None:
        raise NativeError("out of memory")

    monkeypatch.setattr(Context, "draft_chains", fails)
    monkeypatch.setattr(Context, "forget_chosen", lambda context: forgotten.append(context.tokens()))
    with later(demo) as llm:
        with pytest.raises(NativeError):
            llm._engine_thread._warm_up.run(llm.context)
        assert llm._engine_thread._warm_up.done
        assert forgotten == [[]]


@pytest.mark.parametrize("way", ["empty", "grammar", "looked at"])
def test_calls_without_generation_do_not_end_the_warm_up(demo: Path, way: str) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model:
            async with pymtp.AsyncLLM(model, n_ctx=256) as llm:
                if way in ("empty", "grammar"):
                    refused = pymtp.SamplingParams(grammar="nonsense") if way == "grammar" else PARAMS
                    with pytest.raises(pymtp.InvalidRequestError):
                        await llm.generate("" if way == "empty" else "a", refused)
                else:
                    await llm._in_thread(lambda: llm._engine_thread.call(llm.llm.context.memory))
                await until(lambda: llm._engine_thread._warm_up.done)
                assert len(model.measured_costs) == 1

    asyncio.run(use())


@pytest.mark.parametrize("way", ["ask", "look", "close", "wait"])
def test_async_llm_does_not_wait_for_the_warm_up_of_another_one(demo: Path, way: str) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model:
            with model.measuring_lock:
                llm = pymtp.AsyncLLM(model, n_ctx=256)
                await asyncio.sleep(0.05)
                if way == "ask":
                    assert (await llm.generate("def f(", PARAMS)).token_ids
                elif way == "look":
                    assert llm.llm.context.memory()
                elif way == "close":
                    llm.llm.close()  # as a signal handler may do
                assert model.measured_costs == {}
            if way == "wait":
                await until(lambda: llm._engine_thread._warm_up.done)
                assert model.measured_costs
            await llm.close()

    asyncio.run(use())


def test_several_async_llms_over_one_llm_warm_up_once(demo: Path) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model:
            async with pymtp.AsyncLLM(model, n_ctx=256) as one, pymtp.AsyncLLM(one.llm) as other:
                await until(lambda: one._engine_thread._warm_up.done)
                assert model.measured_costs
                assert other._engine_thread is one._engine_thread

    asyncio.run(use())
