"""How many cores there are to compute on."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

from pymtp.cpu_quota import cpu_quota

MAX_THREADS = 512  # GGML_MAX_N_THREADS


def default_threads() -> int:
    """A thread for each core that this process may have: a container's bound on processor time counts, as far as whole
    cores go. At most as many as llama.cpp takes."""
    quota = cpu_quota()
    bound = MAX_THREADS if quota is None else max(1, int(quota + 0.5))
    return min(physical_cores(), bound, MAX_THREADS)


def physical_cores() -> int:
    """Cores this process may run on, hardware threads of one core counted once. On macOS the fast cores only: a graph
    waits for its slowest thread."""
    n = {"darwin": _of_macos, "win32": _of_windows}.get(sys.platform, _of_linux)()
    return max(1, n or os.cpu_count() or 1)


def _of_linux() -> int:
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(topology.read_text() if topology.is_file() else str(cpu))
    return len(siblings)


def _of_macos() -> int:
    """0 where the system does not say."""
    libc = ctypes.CDLL(None)
    for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):  # the first on Apple's own processors only
        value, size = ctypes.c_int32(0), ctypes.c_size_t(4)
        if libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return value.value
    return 0


def _of_windows() -> int:
    """0 where the system does not say."""
    kernel = ctypes.CDLL("kernel32")
    size = ctypes.c_uint32(0)
    only_cores = 0  # RelationProcessorCore
    kernel.GetLogicalProcessorInformationEx(only_cores, None, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    if not kernel.GetLogicalProcessorInformationEx(only_cores, found, ctypes.byref(size)):
        return 0
    return windows_cores(found.raw[: size.value])


def windows_cores(records: bytes) -> int:
    """How many cores the system's records tell of: SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX, each beginning with a kind
    and its own size, 32 bits each."""
    n = at = 0
    while at + 8 <= len(records):
        kind, size = struct.unpack_from("<II", records, at)
        n += kind == 0
        at += max(size, 8)
    return n
