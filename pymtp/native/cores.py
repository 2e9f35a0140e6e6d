"""The number of cores for computing threads: physical cores, affinity, and limits of control groups."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MAX_THREADS = 512  # GGML_MAX_N_THREADS


def default_threads() -> int:
    """Return the default number of threads: one for each fast physical core that this process may use.

    A container's CPU limit, rounded to whole cores, and llama.cpp's limit of 512 threads are the maximum.
    """
    quota = cpu_quota()
    bound = MAX_THREADS if quota is None else max(1, int(quota + 0.5))
    return min(physical_cores(), bound, MAX_THREADS)


def physical_cores() -> int:
    """Count the physical cores that this process may run on.

    Of a hybrid processor, only the fast cores count, because a graph waits for its slowest thread.
    """
    n = {"darwin": _macos_cores, "win32": _windows_cores}.get(sys.platform, linux_cores)()
    return max(1, n or os.cpu_count() or 1)


def linux_cores(devices: Path = Path("/sys/devices")) -> int:
    """Count the fast physical cores that this process may run on, by Linux's sysfs.

    devices: the folder /sys/devices.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cpus = _fast(usable, devices)
    return len({_read(devices, f"system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def _fast(cpus: set[int], devices: Path) -> set[int]:
    """Return the CPUs of `cpus` that are on fast cores.

    For Intel's hybrid processors, sysfs has a list of the fast cores, cpu_core/cpus. On other systems each CPU may have
    a capacity; the fast CPUs are those with at least half of the largest capacity.

    Sources: Documentation/ABI/testing/sysfs-devices-system-cpu and tools/perf/Documentation/intel-hybrid.txt of Linux.
    """
    if fast := cpus & _numbers(_read(devices, "cpu_core/cpus")):
        return fast
    capacities = {
        cpu: int(text) for cpu in cpus if (text := _read(devices, f"system/cpu/cpu{cpu}/cpu_capacity")).isdigit()
    }
    largest = max(capacities.values(), default=0)
    return {cpu for cpu in cpus if 2 * capacities.get(cpu, largest) >= largest}


def _numbers(text: str) -> set[int]:
    """Parse a CPU list as the kernel writes it: 0-7,16."""
    ends = [part.split("-") for part in text.split(",") if part]
    return {cpu for first, *last in ends for cpu in range(int(first), int(last[0] if last else first) + 1)}


def _read(devices: Path, name: str) -> str:
    """Read a file of sysfs; return an empty string where it does not exist."""
    try:
        return (devices / name).read_text().strip()
    except OSError:
        return ""


def _macos_cores() -> int:
    """Count the fast physical cores of a Mac. Return 0 where the system does not report them."""
    libc = ctypes.CDLL(None)
    for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):  # Apple's processors have the first name
        value, size = ctypes.c_int32(0), ctypes.c_size_t(4)
        if libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return value.value
    return 0


def _windows_cores() -> int:
    """Count the fast physical cores on Windows. Return 0 where the system does not report them."""
    kernel = ctypes.CDLL("kernel32")
    size = ctypes.c_uint32(0)
    only_cores = 0  # RelationProcessorCore
    kernel.GetLogicalProcessorInformationEx(only_cores, None, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    if not kernel.GetLogicalProcessorInformationEx(only_cores, found, ctypes.byref(size)):
        return 0
    return windows_cores(found.raw[: size.value])


def windows_cores(records: bytes) -> int:
    """Count the fastest cores in records of SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX.

    A record begins with its kind and its size, 32 bits each. In the record of a core, two bytes follow: flags, and the
    efficiency class, which is greater for faster cores.
    """
    classes = []
    at = 0
    while at + 8 <= len(records):
        kind, size = struct.unpack_from("<II", records, at)
        if kind == 0:
            classes.append(records[at + 9] if size >= 10 and at + 9 < len(records) else 0)
        at += max(size, 8)
    return classes.count(max(classes, default=0))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU limit of this process in cores, or None where there is none.

    A limit of 1.5 allows 150 ms of processor time in each 100 ms. Of the limits of this process's control group and of
    all groups around it, the smallest is returned. Systems without control groups have no limit.

    root: the folder that holds proc and sys.

    Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst ("cpu.max") and scheduler/sched-bwc.rst.
    """
    quotas = [quota for folder in _folders(root) if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def control_groups(root: Path = Path("/")) -> list[Path]:
    """List the folders of this process's control groups that account for processor time, the innermost group first.

    Control groups of version 1 and of version 2 are listed.
    """
    return list({folder.resolve(): None for folder in _folders(root) if (folder / "cpu.stat").is_file()})


def _folders(root: Path) -> Iterator[Path]:
    try:  # in bytes, as a group may have a name that is not valid UTF-8
        lines = os.fsdecode((root / "proc/self/cgroup").read_bytes()).split("\n")
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        number, names, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":  # version 2
            hierarchies = [mounts, mounts / "unified"]
        elif "cpu" in names.split(","):
            hierarchies = [mounts / names, mounts / "cpu", mounts / "cpu,cpuacct"]
        else:
            continue
        # all parent folders are tried: the path is that on the host, but a container may see its own group as the
        # outermost one
        group = PurePosixPath("/", path)
        for hierarchy in hierarchies:
            yield from (hierarchy / str(level).lstrip("/") for level in (group, *group.parents))


def _quota_of(folder: Path) -> float | None:
    """Return the limit in cores of a single control group, None if it has no limit."""
    try:
        if (file := folder / "cpu.max").is_file():  # "max 100000", or two numbers of microseconds
            quota, period = file.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 < int(period) else None
    except (OSError, ValueError):
        return None
