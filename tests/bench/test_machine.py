"""Tests of the description of the machine, and of PeakMemory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from pymtp.bench.machine import PeakMemory, machine

MIB = 2**20


def test_description_of_the_machine_can_be_written_as_json() -> None:
    description = json.loads(json.dumps(machine()))
    assert description["cpu"]
    assert description["cores"] >= 1


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_gpus_have_a_name_and_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine()["gpus"] == []
    stand_in = tmp_path / "nvidia-smi"
    stand_in.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.159.04'\n")
    stand_in.chmod(0o755)
    assert machine()["gpus"] == [{"name": "NVIDIA H200", "driver": "580.159.04"}]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be reset on Linux only")
def test_peak_memory_counts_only_later_allocations() -> None:
    np.ones(128 * MIB, dtype=np.uint8)
    memory = PeakMemory()
    assert memory.before is not None
    assert memory.peak is not None
    assert memory.peak - memory.before < 16 * MIB
    np.ones(64 * MIB, dtype=np.uint8)
    assert 60 * MIB < memory.peak - memory.before < 80 * MIB


def test_peak_memory_is_none_if_the_system_cannot_reset_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymtp.bench.machine._reset_peak", lambda: False)
    assert PeakMemory().before is PeakMemory().peak is None
