"""Time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Raises asyncio.TimeoutError where it takes longer; it is cancelled then, as it is with the
    task that waits. asyncio.wait_for of Python 3.11 and before forgets a cancellation that comes as `work` ends."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=max(0.0, seconds))
    finally:
        task.cancel()
    if not done:
        raise asyncio.TimeoutError
    return task.result()
