"""How many cores there are to compute on."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MAX_THREADS = 512  # GGML_MAX_N_THREADS


def default_threads() -> int:
    """A thread for each core that this process may have: a container's bound on processor time counts, as far as whole
    cores go. At most as many as llama.cpp takes."""
    quota = cpu_quota()
    bound = MAX_THREADS if quota is None else max(1, int(quota + 0.5))
    return min(physical_cores(), bound, MAX_THREADS)


def physical_cores() -> int:
    """Count the cores that this process may run on, hardware threads of one core once. Of a processor with two kinds of
    cores the fast ones count: a graph waits for its slowest thread."""
    n = {"darwin": _of_macos, "win32": _of_windows}.get(sys.platform, linux_cores)()
    return max(1, n or os.cpu_count() or 1)


def linux_cores(devices: Path = Path("/sys/devices")) -> int:
    """Count the cores that this process may run on, by the kernel's files about them."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cpus = _fast(usable, devices)
    return len({_read(devices, f"system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def _fast(cpus: set[int], devices: Path) -> set[int]:
    """Leave out slow ones. Intel's kinds are devices of their own; elsewhere each has a capacity, of 1024 at most.

    Sources: Documentation/ABI/testing/sysfs-devices-system-cpu and tools/perf/Documentation/intel-hybrid.txt of Linux.
    """
    if fast := cpus & _numbers(_read(devices, "cpu_core/cpus")):
        return fast
    capacities = {
        cpu: int(text) for cpu in cpus if (text := _read(devices, f"system/cpu/cpu{cpu}/cpu_capacity")).isdigit()
    }
    most = max(capacities.values(), default=0)
    return {cpu for cpu in cpus if 2 * capacities.get(cpu, most) >= most}


def _numbers(text: str) -> set[int]:
    """Read a list as the kernel writes it: 0-7,16."""
    ends = [part.split("-") for part in text.split(",") if part]
    return {cpu for first, *last in ends for cpu in range(int(first), int(last[0] if last else first) + 1)}


def _read(devices: Path, name: str) -> str:
    """Read a file of the kernel; nothing where there is none."""
    try:
        return (devices / name).read_text().strip()
    except OSError:
        return ""


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
    """Count the fastest cores that the system's records tell of: SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX, each with a
    kind and its own size first, 32 bits each. A core's record goes on with a byte of flags and one of its class: the
    greater, the faster."""
    classes = []
    at = 0
    while at + 8 <= len(records):
        kind, size = struct.unpack_from("<II", records, at)
        if kind == 0:
            classes.append(records[at + 9] if size >= 10 and at + 9 < len(records) else 0)
        at += max(size, 8)
    return classes.count(max(classes, default=0))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Find the processors' time that this process may use, in processors: 1.5 for 150 ms of each 100 ms. None for no
    bound, and where the system has no control groups.

    The least of all levels counts: a group has no more than the group around it. root: where proc and sys are.

    Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst ("cpu.max") and scheduler/sched-bwc.rst.
    """
    found = [quota for folder in _folders(root) if (quota := _quota_of(folder)) is not None]
    return min(found, default=None)


def control_groups(root: Path = Path("/")) -> list[Path]:
    """Find the folders of this process's groups that may have a bound on processor time, from its own to the outermost,
    of both versions."""
    return list({folder.resolve(): None for folder in _folders(root) if (folder / "cpu.stat").is_file()})


def _folders(root: Path) -> Iterator[Path]:
    try:  # names of groups may be no text
        lines = os.fsdecode((root / "proc/self/cgroup").read_bytes()).split("\n")
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        number, names, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":  # version 2
            places = [mounts, mounts / "unified"]
        elif "cpu" in names.split(","):
            places = [mounts / names, mounts / "cpu", mounts / "cpu,cpuacct"]
        else:
            continue
        # a container may see its own group as the outermost, by whatever path its host knows it
        group = PurePosixPath("/", path)
        for place in places:
            yield from (place / str(level).lstrip("/") for level in (group, *group.parents))


def _quota_of(folder: Path) -> float | None:
    """Read a group's own bound, None for none."""
    try:
        if (file := folder / "cpu.max").is_file():  # "max 100000", or microseconds of each period
            quota, period = file.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 < int(period) else None
    except (OSError, ValueError):
        return None
