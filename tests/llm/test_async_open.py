"""Tests of AsyncLLM._open: several completions of one prompt, taken while they are generated."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pymtp import LLM, AsyncLLM, SamplingParams
from pymtp.async_llm import AsyncCompletions
from pymtp.errors import ClosedError, ContextFullError, NativeError
from pymtp.stats import Stats

PROMPT = "def area(width, height):\n"
PARAMS = SamplingParams(max_tokens=40, temperature=1.0, seed=7, n=3, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(n_seq_max=4, n_ctx=512, draft_tokens=3)


@asynccontextmanager
async def open_completions(
    llm: LLM, params: SamplingParams, **options: int | None
) -> AsyncIterator[tuple[AsyncLLM, AsyncCompletions]]:
    async with AsyncLLM(llm) as alone, await alone._open(PROMPT, params, **options) as texts:  # type: ignore[arg-type]
        yield alone, texts


async def take_all(texts: AsyncCompletions) -> None:
    """Take all remaining deltas."""
    while await texts.take():
        pass


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_async_completions_deltas_join_to_the_completions_of_generate(llm: LLM) -> None:
    first = llm.generate(PROMPT, PARAMS)

    async def test() -> None:
        async with open_completions(llm, PARAMS) as (_, texts):
            found: dict[int, str] = defaultdict(str)
            reasons = {}
            while parts := await texts.take():
                for part in parts:
                    found[part.index] += "".join(piece.text for piece in part.pieces)
                    if part.reason is not None:
                        reasons[part.index] = part.reason
            assert [found[i] for i in range(3)] == [one.text for one in (first, *first.others)]
            assert reasons == {0: "length", 1: "length", 2: "length"}
            assert [one.token_ids for one in texts.completions] == [one.token_ids for one in (first, *first.others)]
            assert texts.prompt_tokens == len(first.prompt_token_ids)

    run(test)


def test_pieces_count_drafted_and_accepted_tokens(llm: LLM) -> None:
    async def test() -> None:
        async with open_completions(llm, PARAMS) as (_, texts):
            pieces = defaultdict(list)
            while parts := await texts.take():
                for part in parts:
                    pieces[part.index] += part.pieces
            for index, completion in enumerate(texts.completions):
                stats: Stats = completion.stats
                first, *rounds = pieces[index]
                assert (first.drafted, first.accepted, len(first.token_ids)) == (0, 0, 1)
                assert tuple(piece.drafted for piece in rounds) == stats.depths
                assert sum(piece.accepted for piece in rounds) == stats.accepted > 0
                assert all(piece.accepted <= min(piece.drafted, len(piece.token_ids)) for piece in rounds)

    run(test)


def test_async_completions_without_pieces_are_complete_at_their_end(llm: LLM) -> None:
    async def test() -> None:
        async with open_completions(llm, PARAMS, max_unread=None) as (_, texts):
            ends = []
            while parts := await texts.take():
                assert not any(part.pieces for part in parts)
                ends += [(part.index, part.reason) for part in parts]
            assert sorted(ends) == [(i, "length") for i in range(3)]
            assert all(len(one.token_ids) == 40 for one in texts.completions)

    run(test)


def test_async_completions_close_cancels_running_completions(llm: LLM) -> None:
    async def test() -> None:
        endless = SamplingParams(max_tokens=None, ignore_eos=True)
        async with open_completions(llm, endless) as (alone, texts):
            assert await texts.take()
            texts.close()
            while parts := await texts.take():
                last = parts[-1].reason
            assert last == "cancelled"
            assert (alone.figures().running, alone.figures().waiting) == (0, 0)

    run(test)


def test_async_completions_take_raises_closed_error_after_close() -> None:
    async def test() -> None:
        llm = LLM(n_ctx=512)
        async with open_completions(llm, SamplingParams(max_tokens=None, ignore_eos=True)) as (_, texts):
            await texts.take()
            await asyncio.to_thread(llm.close)
            with pytest.raises(ClosedError):
                await take_all(texts)

    run(test)


def test_failure_of_one_async_completion_does_not_stop_the_others(llm: LLM) -> None:
    async def test() -> None:
        endless = SamplingParams(max_tokens=None, ignore_eos=True, n=3, temperature=1.0)
        async with open_completions(llm, endless) as (_, texts):
            await texts.take()
            failing = texts._requests[1]
            failed = NativeError("a fault of one")
            await asyncio.to_thread(llm._engine_thread.call, lambda: llm._engine.runner.fail(failing, failed))
            with pytest.raises(NativeError, match="a fault of one"):
                await take_all(texts)
            assert not texts._requests[0].ended

    run(test)


def test_async_open_refuses_invalid_arguments_at_once(llm: LLM) -> None:
    async def test() -> None:
        async with AsyncLLM(llm) as alone:
            with pytest.raises(ContextFullError):
                await alone._open([1] * 600)

    run(test)


def test_engine_thread_queue_does_not_grow_with_wake_calls(llm: LLM) -> None:
    async def test() -> None:
        async with open_completions(llm, SamplingParams(max_tokens=300, ignore_eos=True)) as (alone, texts):
            while await texts.take():
                for _ in range(100):
                    alone._engine_thread.wake()
                assert alone._engine_thread._wakes.qsize() <= 2

    run(test)


def test_busy_event_loop_gets_only_one_wakeup(llm: LLM) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with open_completions(llm, SamplingParams(max_tokens=200, ignore_eos=True), max_unread=1000) as (
            alone,
            texts,
        ):
            told: list[object] = []
            call = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda *given: told.append(given) or call(*given)  # type: ignore[method-assign]
            before = alone.figures().finished
            until = time.monotonic() + 60
            while alone.figures().finished == before and time.monotonic() < until:
                time.sleep(0.001)  # the event loop is blocked
            assert len(told) <= 1
            loop.call_soon_threadsafe = call  # type: ignore[method-assign]
            tokens = 0
            while parts := await texts.take():
                tokens += sum(len(piece.token_ids) for part in parts for piece in part.pieces)
            assert tokens == 200

    run(test)
