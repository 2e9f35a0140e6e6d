"""Tests of run_with_timeout."""

from __future__ import annotations

import asyncio

import pytest

from pymtp.server.timeout import run_with_timeout


def test_run_with_timeout_returns_the_result() -> None:
    async def work() -> int:
        return 3

    assert asyncio.run(run_with_timeout(60, work())) == 3


@pytest.mark.parametrize("seconds", [0.01, 0.0, -1.0])
def test_run_with_timeout_cancels_slow_work(seconds: float) -> None:
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append(True)

    async def ask() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await run_with_timeout(seconds, work())
        await asyncio.sleep(0)

    asyncio.run(ask())
    assert ended == [True] or seconds <= 0  # with a timeout of 0, the work perhaps never started


def test_run_with_timeout_is_cancelled_even_if_the_work_ends_at_the_same_time() -> None:
    async def ask() -> None:
        done = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await done

        task = asyncio.ensure_future(run_with_timeout(60, work()))
        while not task._fut_waiter:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        done.set_result(None)
        await asyncio.sleep(0)  # the work has ended, but the task has not noticed yet
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
