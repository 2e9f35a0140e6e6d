"""A description of the machine that a bench runs on, and the peak of host memory during a measurement."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from pymtp.native.cores import physical_cores


def machine() -> dict[str, Any]:
    """Describe this machine: its system, CPU, memory and GPUs, the cores that this process may use, and Python.

    memory_bytes is None if it is unknown.
    """
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
    """The peak of this process's resident memory since this object was made, in bytes.

    Pages of mapped files are counted. `before` is the resident memory when the object was made. Both are None if the
    system is not Linux or the peak cannot be reset.
    """

    def __init__(self) -> None:
        _trim_heap()
        self.before = memory_status("VmRSS") if _reset_peak() else None

    @property
    def peak(self) -> int | None:
        """Return the largest resident memory since this object was made; None if unknown."""
        return None if self.before is None else memory_status("VmHWM")


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
    except OSError:
        return False
    return True


def memory_status(name: str, pid: int | None = None) -> int:
    """Return a figure of /proc/PID/status in bytes, such as "VmHWM", the peak of the resident memory; 0 if unknown.

    pid: None for this process. Raises OSError if the system is not Linux.
    """
    status = Path(f"/proc/{pid or 'self'}/status").read_text()
    match = re.search(rf"^{name}:\s*(\d+) kB$", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _trim_heap() -> None:
    """Give memory that was freed back to the system: glibc may keep it, and it would count as resident."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
