"""Limits the memory of this process, so that a fuzzer cannot exhaust the machine."""

from __future__ import annotations

import os
import resource


def limit_memory(n_bytes: int) -> None:
    """Limit the address space, except with a sanitizer, which reserves terabytes of it."""
    if "ASAN_OPTIONS" not in os.environ:
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
