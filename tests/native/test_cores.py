"""Tests of the number of cores for threads, on three operating systems."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from pymtp import Model
from pymtp.cli.running import BenchOptions
from pymtp.context.options import ContextOptions
from pymtp.native import cores


def test_thread_count_is_limited_by_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    for n, threads in ((3, 3), (576, 512)):
        monkeypatch.setattr(cores, "physical_cores", lambda n=n: n)
        assert cores.default_threads() == threads
    with Model(vocab_only=True) as model:
        assert ContextOptions().context_params(model)[0].n_threads == 512
        assert ContextOptions(n_threads=3).context_params(model)[0].n_threads == 3
    assert BenchOptions().settings()["threads"] == 512


class Mac:
    """A fake C library of macOS that knows only the given sysctl names."""

    def __init__(self, **known: int) -> None:
        self.known = {name.replace("_", ".").encode(): value for name, value in known.items()}

    def sysctlbyname(self, name: bytes, value: Any, size: Any, _new: None, _new_size: Any) -> int:
        assert size._obj.value == 4
        if name not in self.known:
            return -1
        value._obj.value = self.known[name]
        return 0


def core(kind: int, size: int, speed: int = 1) -> bytes:
    return struct.pack("<IIBB", kind, size, 1, speed) + b"\1" * (size - 10)


class Windows:
    """A fake kernel32 that returns the given records."""

    def __init__(self, records: bytes) -> None:
        self.records = records

    def GetLogicalProcessorInformationEx(self, kind: int, into: Any, size: Any) -> int:  # noqa: N802
        assert kind == 0
        if into is None or size._obj.value < len(self.records):
            size._obj.value = len(self.records)
            return 0
        ctypes.memmove(into, self.records, len(self.records))
        return 1


@pytest.mark.parametrize(
    ("platform", "system", "n"),
    [
        ("darwin", Mac(hw_perflevel0_physicalcpu=6, hw_physicalcpu=8), 6),
        ("darwin", Mac(hw_physicalcpu=4), 4),
        ("darwin", Mac(), os.cpu_count()),
        ("win32", Windows(core(0, 48) * 3 + core(0, 64)), 4),
        ("win32", Windows(core(0, 48) + core(3, 80) + core(0, 48)), 2),
        ("win32", Windows(core(0, 48, 0) * 8 + core(0, 48, 1) * 6), 6),
        ("win32", Windows(b""), os.cpu_count()),
        (
            "win32",
            Windows(core(0, 0)[:8] + core(0, 48, 0)),
            2,
        ),  # a record of size 0, which must not cause an endless loop
    ],
)
def test_core_count_is_that_of_macos_or_windows(
    monkeypatch: pytest.MonkeyPatch, platform: str, system: Any, n: int
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: system)
    assert cores.physical_cores() == n


@pytest.mark.parametrize(
    ("files", "n"),
    [
        ({f"cpu{cpu}/topology/thread_siblings_list": f"{cpu & ~1}-{cpu | 1}\n" for cpu in range(4)}, 3 + 2),
        ({"../../cpu_core/cpus": "0-1,4\n", "../../cpu_atom/cpus": "2-3,5-6\n"}, 3),
        ({"../../cpu_core/cpus": "8-15\n"}, 7),  # this process may use none of them
        ({f"cpu{cpu}/cpu_capacity": f"{[1024, 1024, 800, 800, 250, 250, 250][cpu]}\n" for cpu in range(7)}, 4),
        ({"cpu0/cpu_capacity": "1024\n"}, 7),
        ({}, 7),
    ],
    ids=["siblings", "Intel's two kinds", "fast cores of others", "ARM's three kinds", "one capacity", "nothing"],
)
def test_core_count_on_linux_counts_each_fast_core_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], n: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(7)), raising=False)
    (tmp_path / "system/cpu").mkdir(parents=True)
    for name, text in files.items():
        path = tmp_path / "system/cpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cores.linux_cores(tmp_path) == n
