"""Claims about when an AsyncLLM times the launches that `auto` begins with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

import pymtp
from pymtp.context.context import Context
from pymtp.errors import NativeError


async def until(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


PARAMS = pymtp.SamplingParams(max_tokens=8)


def test_an_async_llm_times_launches_before_the_first_request_and_not_in_its_constructor(demo: Path) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model:
            async with pymtp.AsyncLLM(model, n_ctx=256, n_seq_max=2) as llm:
                await until(lambda: model.first_costs)
                ((kind, _),) = model.first_costs
                assert kind[0] == 2
                assert llm.llm.engine.depth.first_rounds
                launches = llm.llm.context.counters.target_decodes
                text = await llm.generate("def f(", PARAMS)
                assert text.stats.rounds == llm.llm.context.counters.target_decodes - launches - 1  # of the prompt
            with pymtp.LLM(model, n_ctx=256) as alone:
                assert text.text == alone.generate("def f(", PARAMS).text

    asyncio.run(use())


@pytest.mark.parametrize("way", ["ask", "ask from a thread", "cancel", "close", "close its LLM", "fail"])
def test_whoever_comes_while_an_async_llm_times_launches_waits_for_one_at_most(
    demo: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    verify_chain = Context.verify_chain
    launched, asked = threading.Event(), threading.Event()
    timed: list[int] = []

    def held(context: Context, tokens: Sequence[int], seq: int = 0) -> list[int]:
        timed.append(len(tokens))
        launched.set()
        assert asked.wait(60)
        if way == "fail":
            raise NativeError("out of memory")
        return verify_chain(context, tokens, seq)

    async def use() -> None:
        monkeypatch.setattr(Context, "verify_chain", held)
        llm = pymtp.AsyncLLM(demo, n_ctx=256, n_threads=1)
        await until(launched.is_set)
        if way == "close":
            closing = asyncio.create_task(llm.close())
            await until(lambda: llm._driver._stopped)
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
            await until(lambda: not llm.llm.turns._running.locked())
        elif way.startswith("ask"):
            in_thread = partial(asyncio.to_thread, llm.llm.generate)
            asking = asyncio.create_task((llm.generate if way == "ask" else in_thread)("def f(", PARAMS))
            await until(lambda: not llm.llm.engine.idle and (way == "ask" or llm.llm.turns.wanted))
            asked.set()
            await asking
        asked.set()
        await until(lambda: not llm.llm.turns._running.locked())
        assert (timed, llm.llm.closed) == ([1], way.startswith("close"))
        monkeypatch.undo()
        if not way.startswith("close"):
            assert llm.llm.context.tokens() == [] or way.startswith("ask")
            assert (await llm.generate("def f(", PARAMS)).text == pymtp.generate("def f(", max_tokens=8).text
        await llm.close()

    asyncio.run(use())


def test_nothing_is_timed_where_sequences_hold_tokens(demo: Path) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model, pymtp.LLM(model, n_ctx=256, _times_later=True) as llm:
            llm.context.prefill([1, 2, 3])
            async with pymtp.AsyncLLM(llm):
                await until(lambda: llm.first_launches.done and not llm.turns._running.locked())
            assert (llm.context.tokens(), model.first_costs) == ([1, 2, 3], {})

    asyncio.run(use())


def test_nothing_is_timed_after_a_request_whatever_its_sequence_holds(demo: Path) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model, pymtp.LLM(model, n_ctx=256, _times_later=True) as llm:
            text = llm.generate("def f(", PARAMS).text
            llm.context.clear()
            async with pymtp.AsyncLLM(llm) as made:
                assert made._driver._thread is None
                assert (await made.generate("def f(", PARAMS)).text == text
            assert model.first_costs == {}

    asyncio.run(use())


def test_a_timing_that_fails_leaves_nothing_behind(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[list[int]] = []

    def fails(*_: object) -> None:
        raise NativeError("out of memory")

    monkeypatch.setattr(Context, "draft_chain", fails)
    monkeypatch.setattr(Context, "forget_chosen", lambda context: forgotten.append(context.tokens()))
    with pymtp.LLM(demo, n_ctx=256, _times_later=True) as llm:
        with pytest.raises(NativeError):
            llm.first_launches.time(llm.context)
        assert llm.first_launches.done
        assert forgotten == [[]]


@pytest.mark.parametrize("way", ["empty", "grammar", "looked at"])
def test_who_asks_for_no_text_ends_no_timing_for_good(demo: Path, way: str) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model:
            async with pymtp.AsyncLLM(model, n_ctx=256) as llm:
                if way in ("empty", "grammar"):
                    refused = pymtp.SamplingParams(grammar="nonsense") if way == "grammar" else PARAMS
                    with pytest.raises(pymtp.InvalidRequestError):
                        await llm.generate("" if way == "empty" else "a", refused)
                else:
                    await llm.in_thread(lambda: llm.llm.turns.between(llm.llm, llm.llm.context.memory))
                await until(lambda: llm.llm.first_launches.done)
                assert len(model.first_costs) == 1

    asyncio.run(use())


@pytest.mark.parametrize("way", ["ask", "look", "close", "wait"])
def test_an_async_llm_does_not_wait_for_the_timing_of_another_one(demo: Path, way: str) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model:
            with model.measuring:
                llm = pymtp.AsyncLLM(model, n_ctx=256)
                await asyncio.sleep(0.05)
                if way == "ask":
                    assert (await llm.generate("def f(", PARAMS)).token_ids
                elif way == "look":
                    assert llm.llm.context.memory()
                elif way == "close":
                    llm.llm.close()  # as a signal handler may
                assert model.first_costs == {}
            if way == "wait":
                await until(lambda: llm.llm.first_launches.done)
                assert model.first_costs
            await llm.close()

    asyncio.run(use())


def test_one_of_several_async_llms_over_one_llm_times_its_launches(demo: Path) -> None:
    async def use() -> None:
        with pymtp.Model(demo) as model:
            async with pymtp.AsyncLLM(model, n_ctx=256) as one, pymtp.AsyncLLM(one.llm) as other:
                await until(lambda: one.llm.first_launches.done)
                assert model.first_costs
                assert other._driver._thread is None

    asyncio.run(use())
