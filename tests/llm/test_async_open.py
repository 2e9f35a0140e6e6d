"""Claims about AsyncLLM.open: several texts of one prompt, taken as they come."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pymtp import LLM, AsyncLLM, SamplingParams
from pymtp.async_llm import AsyncTexts
from pymtp.errors import ClosedError, ContextFullError, NativeError
from pymtp.stats import Stats

PROMPT = "def area(width, height):\n"
PARAMS = SamplingParams(max_tokens=40, temperature=1.0, seed=7, n=3, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(n_seq_max=4, n_ctx=512, draft_tokens=3)


@asynccontextmanager
async def opened(llm: LLM, params: SamplingParams, **options: int | None) -> AsyncIterator[tuple[AsyncLLM, AsyncTexts]]:
    async with AsyncLLM(llm) as alone, await alone.open(PROMPT, params, **options) as texts:  # type: ignore[arg-type]
        yield alone, texts


async def rest(texts: AsyncTexts) -> None:
    """Takes all that is still to come."""
    while await texts.take():
        pass


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_the_parts_of_each_text_are_what_generate_makes(llm: LLM) -> None:
    first = llm.generate(PROMPT, PARAMS)

    async def test() -> None:
        async with opened(llm, PARAMS) as (_, texts):
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


def test_pieces_say_which_tokens_were_drafts(llm: LLM) -> None:
    async def test() -> None:
        async with opened(llm, PARAMS) as (_, texts):
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


def test_texts_without_readers_come_whole_at_their_ends(llm: LLM) -> None:
    async def test() -> None:
        async with opened(llm, PARAMS, ahead=None) as (_, texts):
            ends = []
            while parts := await texts.take():
                assert not any(part.pieces for part in parts)
                ends += [(part.index, part.reason) for part in parts]
            assert sorted(ends) == [(i, "length") for i in range(3)]
            assert all(len(one.token_ids) == 40 for one in texts.completions)

    run(test)


def test_what_is_left_open_ends_when_it_is_closed(llm: LLM) -> None:
    async def test() -> None:
        endless = SamplingParams(max_tokens=None, ignore_eos=True)
        async with opened(llm, endless) as (alone, texts):
            assert await texts.take()
            texts.close()
            while parts := await texts.take():
                last = parts[-1].reason
            assert last == "cancelled"
            assert (alone.figures().running, alone.figures().waiting) == (0, 0)

    run(test)


def test_a_closed_llm_is_told_to_who_takes() -> None:
    async def test() -> None:
        llm = LLM(n_ctx=512)
        async with opened(llm, SamplingParams(max_tokens=None, ignore_eos=True)) as (_, texts):
            await texts.take()
            await asyncio.to_thread(llm.close)
            with pytest.raises(ClosedError):
                await rest(texts)

    run(test)


def test_the_failure_of_one_text_is_told_while_others_go_on(llm: LLM) -> None:
    async def test() -> None:
        endless = SamplingParams(max_tokens=None, ignore_eos=True, n=3, temperature=1.0)
        async with opened(llm, endless) as (_, texts):
            await texts.take()
            failing = texts._requests[1]
            failed = NativeError("a fault of one")
            await asyncio.to_thread(llm.turns.between, llm, lambda: llm.engine.fail_one(failing, failed))
            with pytest.raises(NativeError, match="a fault of one"):
                await rest(texts)
            assert not texts._requests[0].ended

    run(test)


def test_what_cannot_be_asked_is_refused_at_once(llm: LLM) -> None:
    async def test() -> None:
        async with AsyncLLM(llm) as alone:
            with pytest.raises(ContextFullError):
                await alone.open([1] * 600)

    run(test)


def test_a_reader_leaves_no_trail_in_the_engines_thread(llm: LLM) -> None:
    async def test() -> None:
        async with opened(llm, SamplingParams(max_tokens=300, ignore_eos=True)) as (alone, texts):
            while await texts.take():
                for _ in range(100):
                    alone._driver.wake()
                assert alone._driver._work.qsize() <= 2

    run(test)


def test_a_loop_that_has_not_looked_is_told_once(llm: LLM) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with opened(llm, SamplingParams(max_tokens=200, ignore_eos=True), ahead=1000) as (alone, texts):
            told: list[object] = []
            call = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda *given: told.append(given) or call(*given)  # type: ignore[method-assign]
            before = alone.figures().finished
            until = time.monotonic() + 60
            while alone.figures().finished == before and time.monotonic() < until:
                time.sleep(0.001)  # the loop stands still
            assert len(told) <= 1
            loop.call_soon_threadsafe = call  # type: ignore[method-assign]
            tokens = 0
            while parts := await texts.take():
                tokens += sum(len(piece.token_ids) for part in parts for piece in part.pieces)
            assert tokens == 200

    run(test)
