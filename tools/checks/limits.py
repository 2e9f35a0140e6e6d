"""A limit on this process's memory, so that a fuzzer's finding is an error and not a machine without memory."""

from __future__ import annotations

import os
import resource


def limit_memory(n_bytes: int) -> None:
    """Limits addresses. With a sanitizer, which reserves terabytes of them for itself, there is no limit."""
    if "ASAN_OPTIONS" not in os.environ:
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
