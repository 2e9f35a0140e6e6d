"""The machine that a bench ran on, and how much of its memory one measurement took."""

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
    """Operating system, CPU, physical cores this process may use, bytes of memory (None where it is not told), GPUs."""
    return {
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": physical_cores(),
        "memory_bytes": _memory_bytes(),
        "gpus": gpus(),
        "python": platform.python_version(),
    }


def gpus() -> list[dict[str, str]]:
    """Name and driver of each NVIDIA GPU, as nvidia-smi tells them; none where it is not there."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(("name", "driver"), line.split(", "), strict=True)) for line in told.splitlines() if ", " in line]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return found[1] if found else platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


class PeakMemory:
    """The most host memory that this process holds from now on: bytes resident, pages of mapped files included.

    Linux only, elsewhere `before` and `peak` are None.
    """

    def __init__(self) -> None:
        _give_back_freed_memory()
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
    found = re.search(rf"^{name}:\s*(\d+) kB$", (_PROC / "status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _give_back_freed_memory() -> None:
    """What a measurement freed must not be counted as in use before the next one. glibc keeps it for later."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
