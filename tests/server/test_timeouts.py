"""Claims about time limits: what takes too long, or is left, ends."""

from __future__ import annotations

import asyncio

import pytest

from pymtp.server.timeouts import within


def test_what_is_done_in_time_is_returned() -> None:
    async def work() -> int:
        return 3

    assert asyncio.run(within(60, work())) == 3


@pytest.mark.parametrize("seconds", [0.01, 0.0, -1.0])
def test_what_takes_too_long_is_cancelled(seconds: float) -> None:
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append(True)

    async def ask() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await within(seconds, work())
        await asyncio.sleep(0)

    asyncio.run(ask())
    assert ended == [True] or seconds <= 0  # it may not have begun


def test_a_task_that_is_cancelled_as_the_work_ends_does_not_go_on() -> None:
    async def ask() -> None:
        done = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await done

        task = asyncio.ensure_future(within(60, work()))
        while not task._fut_waiter:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        done.set_result(None)
        await asyncio.sleep(0)  # the work has ended, and the task was not told
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
