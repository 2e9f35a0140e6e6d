"""Coroutines with a limit on their time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_with_timeout(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Cancel `work` after `seconds`, or when the calling task is cancelled.

    Unlike asyncio.wait_for of Python 3.11 and older, this function does not ignore a cancellation of the calling task
    in the moment in which `work` ends.

    Raises asyncio.TimeoutError if `work` takes longer.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=max(0.0, seconds))
    finally:
        task.cancel()
    if not done:
        raise asyncio.TimeoutError
    return task.result()
