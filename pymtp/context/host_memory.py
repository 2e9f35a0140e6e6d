"""Host memory: its size, the default budget of the prefix cache, and allocation of large arrays."""

from __future__ import annotations

import math
import mmap
import re
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

MAX_DEFAULT_CACHE = 8 * 2**30  # bytes

# Arrays of at least this many bytes get a memory map of their own. Smaller arrays do not, because Linux allows only
# 65,530 maps in a process (max_map_count in man 5 proc).
OWN_PAGES = 2**18

SWAP = Path("/proc/meminfo")

# Files with the memory limit of a container. Each holds a number of bytes, or "max".
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Files with the bytes of memory that a container uses, in the order of LIMITS, and those with what of it can be dropped
USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
STATS = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")
SWAP_LIMIT = Path("/sys/fs/cgroup/memory.swap.max")


def default_cache_bytes(taken: Iterable[DeviceMemory] = ()) -> int:
    """Return the default budget of the prefix cache in bytes.

    It is a quarter of the memory of the machine or the container, at most 8 GiB, and at most half of the memory that
    the model leaves free. With a larger cache, the system could drop mapped weights from memory; reading them from disk
    again costs more than computing a prompt.

    taken: the memory of the model and its contexts on each device.
    """
    used = sum(device.total for device in taken if device.host)
    total = host_memory()
    return max(0, MAX_DEFAULT_CACHE if total is None else min(MAX_DEFAULT_CACHE, total // 4, (total - used) // 2))


def host_memory() -> int | None:
    """Return the bytes of memory of the machine or the container, None where the size is unknown."""
    total = [device["memory_total"] for device in build_info()["devices"] if device["name"] == "CPU"]
    for name in LIMITS:
        with suppress(OSError, ValueError):
            total.append(int(Path(name).read_text()))
    return min(total, default=None)


def free_host_memory() -> int | None:
    """Return the bytes of memory that programs could still take, of the machine or the container; None if unknown.

    Cached files count as free, because the system drops them when memory is needed.
    """
    free = []
    with suppress(OSError, ValueError):
        free.append(_meminfo("MemAvailable"))
    for limit, used, stats in zip(LIMITS, USED, STATS, strict=True):
        with suppress(OSError, ValueError):
            cached = re.search(r"^(?:total_)?inactive_file (\d+)$", Path(stats).read_text(), re.MULTILINE)
            taken = int(Path(used).read_text()) - (int(cached[1]) if cached else 0)
            free.append(max(0, int(Path(limit).read_text()) - taken))
    return min(free) if free else host_memory()


def check_room(model: Model, params: Any, options: Any) -> None:
    """Raise InvalidRequestError where a Context certainly needs more host memory than there is, swap included.

    Without this check, the system would grant the allocation, and would kill this process or another one as soon as
    the memory is written to.

    params, options: the structs that `ContextOptions.context_params` returned.

    Also raises the errors of least_memory.
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
    """Return the bytes of swap that this process may use, None where the size is unknown, as for swap that grows."""
    try:
        found = _meminfo("SwapTotal")
    except (OSError, ValueError):
        return None
    with suppress(OSError, ValueError):
        found = min(found, int(SWAP_LIMIT.read_text()))
    return found


def _meminfo(name: str) -> int:
    """Return the bytes of a line of /proc/meminfo. Raises ValueError if there is no such line."""
    (line,) = (line for line in SWAP.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 2**10


def host_bytes(*shape: int) -> NDArray[np.uint8]:
    """Allocate an array for K, V or states. Its memory returns to the system as soon as the array is freed.

    Large arrays do not come from malloc, because malloc keeps freed memory between live arrays: a process with arrays
    of two sizes grew to 1.37 times the size of the arrays.
    """
    n = math.prod(shape)
    if n >= OWN_PAGES:
        with suppress(OSError):  # a process may have too many maps
            pages = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return np.frombuffer(pages, dtype=np.uint8).reshape(shape)
    return np.empty(shape, dtype=np.uint8)
