"""A timeout for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_with_timeout(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, and cancel it after `seconds`, or when the calling task is cancelled.

    asyncio.wait_for of Python 3.11 and older loses a cancellation that comes just as `work` ends; this does not.

    Raises asyncio.TimeoutError.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=max(0.0, seconds))
    finally:
        task.cancel()
    if not done:
        raise asyncio.TimeoutError
    return task.result()
