"""How much memory the machine has, and how much of it prefixes may take."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pymtp.build import build_info

MOST = 8 * 2**30

# What a container may take: a number, or "max".
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def default_cache_bytes() -> int:
    """A quarter of the machine's memory, or of the container's, at most 8 GiB."""
    total = [device["memory_total"] for device in build_info()["devices"] if device["name"] == "CPU"]
    for name in LIMITS:
        with suppress(OSError, ValueError):
            total.append(int(Path(name).read_text()))
    return min([MOST, *(n // 4 for n in total)])
