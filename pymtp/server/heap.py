"""Gives memory that large requests took back to the system, which glibc's malloc may keep otherwise."""

from __future__ import annotations

import asyncio
import ctypes
import platform
from contextlib import suppress

TRIM_BYTES = 8 * 2**20  # memory is given back after requests that took this much since the last time
DELAY_SECONDS = 0.5  # no more than one trim in this time: it takes some milliseconds, on a thread


class Heap:
    """The heap of the process. Only one thread, which has an event loop, may call `on_freed`."""

    def __init__(self) -> None:
        self._n_freed = 0
        self._scheduled = False

    def on_freed(self, n_bytes: int) -> None:
        """Note that requests have freed about this many bytes; give them back soon if they are many."""
        self._n_freed += n_bytes
        if self._n_freed >= TRIM_BYTES and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self._trim)

    def _trim(self) -> None:
        self._n_freed, self._scheduled = 0, False
        if platform.libc_ver()[0] == "glibc":
            with suppress(RuntimeError):  # the interpreter exits, and starts no thread
                asyncio.get_running_loop().run_in_executor(None, ctypes.CDLL(None).malloc_trim, 0)


HEAP = Heap()
