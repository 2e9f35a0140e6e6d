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

from pymtp.build import build_info
from pymtp.errors import InvalidRequestError
from pymtp.memory import DeviceMemory, plan_memory
from pymtp.model import Model
from pymtp.values import in_range

MOST = 8 * 2**30

# Bytes that get pages of their own. Not less: a process has 65,530 maps by default, see man 5 proc.
OWN_PAGES = 2**18

# What a container may take: a number, or "max".
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


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


def check_room(model: Model, **options: Any) -> None:
    """Raises InvalidRequestError where a Context takes more of the host's memory than there is, beside the weights:
    the system would give it, and end the process, or another one, as it is written to.

    options: of Context. Raises what plan_memory raises. Plans, which takes a moment, only where the context may be that
    large, and where the model's file is still the one that was loaded.
    """
    total = host_memory()
    cells = int(options["n_ctx"]) * int(options["n_seq_max"]) if options["n_ctx"] else model.n_ctx_train
    most = 4 * cells * model.n_layer * model.n_embd  # of K and V, were all layers of full attention in 16 bits
    if total is None or most < total or not model.is_on_disk:
        return
    given = {**options, "trace": False}
    plan = plan_memory(model, n_gpu_layers=model.options.layers, placing=model.options, **given)
    taken = sum(device.total - device.weights for device in plan if device.host)
    if taken > total:
        raise InvalidRequestError(
            f"n_ctx={options['n_ctx']} with n_seq_max={options['n_seq_max']} takes {taken / 2**30:.1f} GiB of memory "
            f"beside the weights, and the host has {total / 2**30:.1f} GiB",
            "n_ctx",
        )


def host_bytes(*shape: int) -> NDArray[np.uint8]:
    """Memory for K, V and states, which the system has back as soon as it is freed: malloc keeps what is between two
    arrays, and with arrays of two sizes a process grew by 1.37 times what they took."""
    n = math.prod(shape)
    if n >= OWN_PAGES:
        with suppress(OSError):  # of too many maps
            pages = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return np.frombuffer(pages, dtype=np.uint8).reshape(shape)
    return np.empty(shape, dtype=np.uint8)
