"""How much memory the machine has, how much of it prefixes may take, and where it comes from."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymtp.context.memory import DeviceMemory, least_memory
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.native.build_info import build_info
from pymtp.validation import in_range

MOST = 8 * 2**30

# Bytes that get pages of their own. Not less: a process has 65,530 maps by default, see man 5 proc.
OWN_PAGES = 2**18

SWAP = Path("/proc/meminfo")

# What a container may take: a number, or "max".
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
SWAP_LIMIT = Path("/sys/fs/cgroup/memory.swap.max")


def read_cache_bytes(value: int | None) -> int | None:
    """A cache_bytes; None for the default. Raises InvalidRequestError for what is none."""
    return None if value is None else in_range("cache_bytes", value, 0, 2**63 - 1)


def default_cache_bytes(taken: Iterable[DeviceMemory] = ()) -> int:
    """A quarter of the machine's memory, or of the container's, at most 8 GiB, and at most half of what is left there:
    weights that must come from the disk again cost more than any prompt. taken: by a model and its contexts."""
    used = sum(device.total for device in taken if device.host)
    total = host_memory()
    return max(0, MOST if total is None else min(MOST, total // 4, (total - used) // 2))


def host_memory() -> int | None:
    """Bytes of the machine's memory, or of the container's; None where nobody says."""
    total = [device["memory_total"] for device in build_info()["devices"] if device["name"] == "CPU"]
    for name in LIMITS:
        with suppress(OSError, ValueError):
            total.append(int(Path(name).read_text()))
    return min(total, default=None)


def check_room(model: Model, params: Any, options: Any) -> None:
    """Raises InvalidRequestError where a Context is sure to take more of the host's memory than there is, swap
    included: the system would give it, and end the process, or another one, as it is written to.

    params, options: of `native_options`. Raises what least_memory raises.
    """
    needed, total, swap = least_memory(model, params, options), host_memory(), _swap()
    if total is None or swap is None or needed <= total + swap:
        return
    n_seq_max = options.n_seq_max
    texts = f" with n_seq_max={n_seq_max}" if n_seq_max > 1 else ""
    raise InvalidRequestError(
        f"n_ctx={params.n_ctx // n_seq_max}{texts} takes at least {needed / 2**30:.1f} GiB of memory, and the host has "
        f"{total / 2**30:.1f} GiB",
        "n_ctx",
    )


def _swap() -> int | None:
    """Bytes of swap that this process may take; None on systems that do not say, as those whose swap grows."""
    try:
        (line,) = (line for line in SWAP.read_text().splitlines() if line.startswith("SwapTotal:"))
        found = int(line.split()[1]) * 2**10
    except (OSError, ValueError):
        return None
    with suppress(OSError, ValueError):
        found = min(found, int(SWAP_LIMIT.read_text()))
    return found


def host_bytes(*shape: int) -> NDArray[np.uint8]:
    """Memory for K, V and states, which the system has back as soon as it is freed: malloc keeps what is between two
    arrays, and with arrays of two sizes a process grew by 1.37 times what they took."""
    n = math.prod(shape)
    if n >= OWN_PAGES:
        with suppress(OSError):  # of too many maps
            pages = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return np.frombuffer(pages, dtype=np.uint8).reshape(shape)
    return np.empty(shape, dtype=np.uint8)
