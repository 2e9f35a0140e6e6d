"""The machine of a bench, and the peak of the host memory during a measurement."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from pymtp.native.cores import physical_cores

_PROC = Path("/proc/self")


def machine() -> dict[str, Any]:
    """Describe the machine: system, CPU, physical cores of this process, bytes of memory (None if unknown), GPUs."""
    return {
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": physical_cores(),
        "memory_bytes": _memory_bytes(),
        "gpus": gpus(),
        "python": platform.python_version(),
    }


def gpus() -> list[dict[str, str]]:
    """Return the name and driver of each NVIDIA GPU from nvidia-smi; an empty list without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [
        dict(zip(("name", "driver"), line.split(", "), strict=True)) for line in output.splitlines() if ", " in line
    ]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return match[1] if match else platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


class PeakMemory:
    """The peak of this process's resident memory from now on, in bytes, with pages of mapped files.

    Linux only: elsewhere `before` and `peak` are None.
    """

    def __init__(self) -> None:
        _trim_heap()
        self.before = _status("VmRSS") if _reset_peak() else None

    @property
    def peak(self) -> int | None:
        return None if self.before is None else _status("VmHWM")


def _reset_peak() -> bool:
    try:
        (_PROC / "clear_refs").write_text("5")  # proc(5): resets VmHWM
    except OSError:
        return False
    return True


def _status(name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB$", (_PROC / "status").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _trim_heap() -> None:
    """Return freed memory to the system. Else glibc keeps it, and the next measurement would count it as in use."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
