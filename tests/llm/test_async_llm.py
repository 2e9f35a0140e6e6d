"""Tests of AsyncLLM: requests of coroutines run in one batch, and a cancelled task cancels only its own requests."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from conftest import make_llm

from pymtp import LLM, AsyncLLM, ClosedError, InvalidRequestError, NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.engine.engine import Engine

SHORT = SamplingParams(max_tokens=12)
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


@pytest.fixture(scope="module")
def several() -> Iterator[LLM]:
    with make_llm(n_seq_max=4, n_ctx=8192) as llm:
        yield llm


@pytest.fixture
def expected(several: LLM, prompts: list[str]) -> list[str]:
    return [several.generate(prompt, SHORT).text for prompt in prompts]


def run(llm: LLM, use: Callable[[AsyncLLM], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with AsyncLLM(llm) as made:
            return await asyncio.wait_for(use(made), 30)

    return asyncio.run(main())


def wait_until(ready: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_async_completions_may_be_freed_while_the_engine_thread_takes_a_request(
    several: LLM, prompts: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's garbage collector may free AsyncCompletions at any line; they then cancel their requests."""

    async def use(llm: AsyncLLM) -> str:
        texts = [await llm._open("import ", ENDLESS)]
        wake = llm._engine_thread.wake

        def freeing() -> None:
            texts.clear()
            wake()

        monkeypatch.setattr(llm._engine_thread, "wake", freeing)
        return (await llm.generate(prompts[0], SHORT)).text

    assert run(several, use) == expected[0]


def test_async_llm_coroutines_share_rounds_and_get_the_texts_of_single_requests(
    several: LLM, prompts: list[str], expected: list[str]
) -> None:
    before = several.figures().sequences.get(4, 0)

    async def use(llm: AsyncLLM) -> list[str]:
        done = await asyncio.gather(*(llm.generate(prompt, SHORT) for prompt in prompts))
        return [completion.text for completion in done]

    assert run(several, use) == expected
    assert several.figures().sequences[4] > before


def test_async_generate_returns_a_list_of_completions_for_a_list_of_prompts(
    several: LLM, prompts: list[str], expected: list[str]
) -> None:
    async def use(llm: AsyncLLM) -> list[str]:
        return [completion.text for completion in await llm.generate(prompts, SHORT)]

    assert run(several, use) == expected


def test_async_streams_at_the_same_time_yield_the_same_texts(
    several: LLM, prompts: list[str], expected: list[str]
) -> None:
    async def joined(llm: AsyncLLM, prompt: str) -> str:
        return "".join([piece.text async for piece in llm.stream(prompt, SHORT)])

    async def use(llm: AsyncLLM) -> list[str]:
        return await asyncio.gather(*(joined(llm, prompt) for prompt in prompts))

    assert run(several, use) == expected


def test_unread_async_stream_delays_no_other_request_and_keeps_its_text(
    several: LLM, prompts: list[str], expected: list[str]
) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    wholes = [several.generate(prompt, params).text for prompt in prompts[:5]]

    async def use(llm: AsyncLLM) -> None:
        slow = [llm.stream(prompts[i], params) for i in range(5)]
        begun = [await anext(stream) for stream in slow]
        assert (await llm.generate(prompts[7], SHORT)).text == expected[7]
        for i, stream in enumerate(slow):
            rest = [piece.text async for piece in stream]
            assert "".join([begun[i].text, *rest]) == wholes[i]

    run(several, use)


def test_async_stream_continues_when_its_reader_returns(several: LLM, prompts: list[str]) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True)

    async def use(llm: AsyncLLM) -> str:
        stream = llm.stream(prompts[0], params)
        first = await anext(stream)
        while not llm.llm._engine.idle:
            await asyncio.sleep(0.001)
        return first.text + "".join([piece.text async for piece in stream])

    assert run(several, use) == several.generate(prompts[0], params).text


def test_cancelled_task_cancels_only_its_own_request(several: LLM, prompts: list[str], expected: list[str]) -> None:
    before = several.figures()

    async def use(llm: AsyncLLM) -> str:
        endless = [asyncio.create_task(llm.generate(prompt, ENDLESS)) for prompt in prompts[:3]]
        other = asyncio.create_task(llm.generate(prompts[3], SHORT))
        while llm.figures().running < 3:
            await asyncio.sleep(0.001)
        for task in endless:
            task.cancel()
        ends = await asyncio.gather(*endless, return_exceptions=True)
        assert {type(one) for one in ends} == {asyncio.CancelledError}
        text = (await other).text
        while llm.figures().running or llm.figures().waiting:
            await asyncio.sleep(0.001)
        return text

    assert run(several, use) == expected[3]
    after = several.figures()
    assert (after.running, after.waiting) == (0, 0)
    assert after.cancelled - before.cancelled == 3


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Future[Any]]:
    """Delay the preparation of prompts until all futures in the returned list are done."""
    until: list[asyncio.Future[Any]] = []
    original = LLM._make_requests

    def submit(*arguments: Any, **keywords: Any) -> Any:
        while not until or not all(future.done() for future in until):
            time.sleep(0.001)
        return original(*arguments, **keywords)

    monkeypatch.setattr(LLM, "_make_requests", submit)
    return until


@pytest.mark.parametrize("how", ["the task is cancelled", "the loop ends"])
def test_task_cancelled_during_preparation_cancels_its_request(
    several: LLM, slow: list[asyncio.Future[Any]], how: str
) -> None:
    before = several.figures().cancelled

    async def main() -> None:
        llm = AsyncLLM(several)  # the request under test is the first one of this AsyncLLM
        slow.append(asyncio.create_task(llm.generate("import ", ENDLESS)))
        await asyncio.sleep(0.01)
        if how == "the task is cancelled":
            slow[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow[0]
            while several.figures().cancelled == before:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 10))
    wait_until(lambda: several.figures().cancelled > before)
    assert (several.figures().running, several.figures().waiting) == (0, 0)


def test_async_llm_refuses_a_request_that_arrives_after_close(several: LLM, slow: list[asyncio.Future[Any]]) -> None:
    async def main() -> None:
        llm = AsyncLLM(several)
        asked = asyncio.create_task(llm.generate("import ", ENDLESS))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(llm.close())
        await closing
        slow.append(closing)
        with pytest.raises(ClosedError, match="the AsyncLLM is closed"):
            await asked

    asyncio.run(asyncio.wait_for(main(), 10))
    assert (several.figures().running, several.figures().waiting) == (0, 0)


def test_async_llm_needs_no_thread_of_asyncios_default_executor(
    several: LLM, prompts: list[str], expected: list[str]
) -> None:
    async def main() -> str:
        done = threading.Event()
        busy = [asyncio.create_task(asyncio.to_thread(done.wait, 20)) for _ in range(40)]  # 32 threads at most
        await asyncio.sleep(0.01)
        try:
            llm = AsyncLLM(several)
            text = (await asyncio.wait_for(llm.generate(prompts[0], SHORT), 10)).text
            await asyncio.wait_for(llm.close(), 10)
            return text
        finally:
            done.set()
            await asyncio.gather(*busy)

    assert asyncio.run(main()) == expected[0]


def test_async_llm_without_references_frees_its_llm() -> None:
    async def main() -> weakref.ref[LLM]:
        llm = AsyncLLM(n_ctx=256, n_threads=1, draft_tokens=2)
        await llm.generate("import ", SHORT)
        return weakref.ref(llm.llm)

    inner = asyncio.run(main())
    gc.collect()
    wait_until(lambda: inner() is None)


def test_async_stream_closed_early_cancels_its_request(several: LLM) -> None:
    async def use(llm: AsyncLLM) -> None:
        stream = llm.stream("import ", ENDLESS)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        while llm.figures().running:
            await asyncio.sleep(0.001)

    run(several, use)


def test_await_raises_the_error_of_the_request(several: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(llm: AsyncLLM) -> None:
        with pytest.raises(InvalidRequestError, match="empty"):
            await llm.generate("", SHORT)
        with pytest.raises(InvalidRequestError, match="no way"):
            await llm.generate("import ", SHORT)
        with pytest.raises(InvalidRequestError, match="no way"):
            async for _ in llm.stream("import ", SHORT):
                pass
        with pytest.raises(InvalidRequestError, match="a stream has one completion"):
            async for _ in llm.stream("import ", SamplingParams(n=2)):
                pass
        with pytest.raises(InvalidRequestError, match="must be SamplingParams, not list"):
            async for _ in llm.stream("import ", [SamplingParams(n=2)]):  # type: ignore[arg-type]
                pass
        assert (llm.figures().running, llm.figures().waiting) == (0, 0)

    def refuse(self: Context, seq: int = 0) -> int:
        raise InvalidRequestError("no way on")

    monkeypatch.setattr(Context, "first_token", refuse)
    run(several, use)


def test_engine_failure_is_raised_in_every_running_async_call_and_later_calls_work(
    prompts: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def fail(self: Engine) -> bool:
        raise RuntimeError("no such place")

    async def use(llm: AsyncLLM) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "step", fail)
            tasks = [asyncio.create_task(llm.generate(prompt, SHORT)) for prompt in prompts[:3]]
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [(type(end), "no such place" in str(end)) for end in ends] == [(NativeError, True)] * 3
        assert (await llm.generate(prompts[0], SHORT)).text == expected[0]

    with make_llm(n_seq_max=2) as llm:
        run(llm, use)
    assert 1 <= len(told) <= 3  # a request that is submitted after the first failure causes a second failure


def test_async_llm_close_cancels_requests_and_leaves_a_given_llm_open(
    several: LLM, prompts: list[str], expected: list[str]
) -> None:
    async def main() -> None:
        llm = AsyncLLM(several)
        endless = asyncio.create_task(llm.generate("import ", ENDLESS))
        await asyncio.sleep(0.05)
        await llm.close()
        assert (await endless).finish_reason == "cancelled"
        with pytest.raises(ClosedError):
            await llm.generate("import ", SHORT)

    asyncio.run(main())
    assert several.generate(prompts[0], SHORT).text == expected[0]


def test_async_llm_creates_and_frees_its_own_llm(prompts: list[str], expected: list[str]) -> None:
    async def main() -> str:
        async with AsyncLLM(n_ctx=512, n_threads=1, draft_tokens=2) as llm:
            text = (await llm.generate(prompts[1], SHORT)).text
            inner = llm.llm
        with pytest.raises(ClosedError):
            inner.generate("import ", SHORT)
        return text

    assert asyncio.run(main()) == expected[1]


def test_threads_may_call_the_llm_of_an_async_llm_beside_coroutines(
    several: LLM, prompts: list[str], expected: list[str]
) -> None:
    async def use(llm: AsyncLLM) -> list[str]:
        threads = [asyncio.to_thread(several.generate, prompt, SHORT) for prompt in prompts[:6]]
        tasks = [llm.generate(prompt, SHORT) for prompt in prompts[6:]]
        return [completion.text for completion in await asyncio.gather(*threads, *tasks)]

    assert run(several, use) == expected


def test_async_llm_close_does_not_wait_for_calls_of_threads(
    several: LLM, prompts: list[str], expected: list[str]
) -> None:
    worker = threading.Thread(target=several.generate, args=(prompts[0], ENDLESS))
    worker.start()
    while worker.is_alive() and not several.figures().running:
        time.sleep(0.001)
    assert run(several, lambda llm: llm.generate(prompts[1], SHORT)).text == expected[1]
    assert worker.is_alive()
    several.cancel()
    worker.join()
