"""Tests of host memory: the default size of the prefix cache, and contexts that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pymtp import LLM, InvalidRequestError
from pymtp.context import host_memory
from pymtp.context.context import Context
from pymtp.context.host_memory import MAX_DEFAULT_CACHE, default_cache_bytes
from pymtp.context.memory import DeviceMemory
from pymtp.model.model import Model


def set_machine_memory(monkeypatch: pytest.MonkeyPatch, total: int, *limits: Path) -> None:
    devices = [{"name": "GPU", "memory_total": 2**20}, {"name": "CPU", "memory_total": total}]
    monkeypatch.setattr(host_memory, "build_info", lambda: {"devices": devices})
    monkeypatch.setattr(host_memory, "LIMITS", [str(path) for path in limits])


def test_cache_bytes_are_a_quarter_of_the_memory_up_to_8_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine_memory(monkeypatch, 16 * 2**30)
    assert default_cache_bytes() == 4 * 2**30
    set_machine_memory(monkeypatch, 2**40)
    assert default_cache_bytes() == MAX_DEFAULT_CACHE == 8 * 2**30


def test_cache_bytes_leave_room_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine_memory(monkeypatch, 32 * 2**30)
    for used, found in ((16, 8), (28, 2), (40, 0)):
        taken = [DeviceMemory("GPU", host=False, weights=2**40), DeviceMemory("CPU", host=True, weights=used * 2**30)]
        assert default_cache_bytes(taken) == found * 2**30


def test_cache_bytes_of_an_llm_count_its_model_and_contexts(monkeypatch: pytest.MonkeyPatch, demo: Path) -> None:
    with LLM(demo, n_ctx=256, draft_tokens=0) as llm:
        used = sum(device.total for device in llm.context.memory())
    set_machine_memory(monkeypatch, used + 2**21)
    with LLM(demo, n_ctx=256, draft_tokens=0) as llm:
        assert llm._engine.prefix_cache.store.eviction.limit == 2**20


def test_cache_bytes_respect_the_limit_of_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    set_machine_memory(monkeypatch, 2**40, tmp_path / "missing", limit)
    limit.write_text("max\n")
    assert default_cache_bytes() == MAX_DEFAULT_CACHE
    limit.write_text(f"{2**30}\n")
    assert default_cache_bytes() == 2**28


@pytest.mark.parametrize("n_ctx", [0, 8192])
@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_context_beyond_the_memory_is_refused_before_allocation(
    monkeypatch: pytest.MonkeyPatch, shipped_f32: Model, tmp_path: Path, n_ctx: int, draft_tokens: int
) -> None:
    """Linux would overcommit the memory, and kill the process when the memory is used."""
    options: dict[str, Any] = {"n_ctx": n_ctx, "n_seq_max": 2, "draft_tokens": draft_tokens}
    with Context(shipped_f32, **options) as fits:
        (used,) = fits.memory()
    held = used.kv + used.states + used.head_kv
    cells = 2 * 8192 * (2 if draft_tokens else 1)  # for each cell, llama.cpp has some 50 bytes of metadata
    (tmp_path / "meminfo").write_text("SwapTotal: 0 kB\n")
    monkeypatch.setattr(host_memory, "SWAP", tmp_path / "meminfo")
    set_machine_memory(monkeypatch, held + 64 * cells)
    Context(shipped_f32, **options).close()
    set_machine_memory(monkeypatch, held + 32 * cells)
    with pytest.raises(InvalidRequestError, match=r"n_ctx=8192 with n_seq_max=2 takes at least 0\.\d GiB of memory"):
        Context(shipped_f32, **options)


def test_available_memory_counts_the_swap_of_a_container(
    monkeypatch: pytest.MonkeyPatch, shipped_f32: Model, tmp_path: Path
) -> None:
    swap, limit = tmp_path / "meminfo", tmp_path / "memory.swap.max"
    monkeypatch.setattr(host_memory, "SWAP", swap)
    monkeypatch.setattr(host_memory, "SWAP_LIMIT", limit)
    set_machine_memory(monkeypatch, 0)
    Context(shipped_f32, n_ctx=256).close()  # works also if the amount of swap is unknown
    swap.write_text("MemTotal: 8 kB\nSwapTotal:  2000000 kB\n")
    Context(shipped_f32, n_ctx=256).close()
    limit.write_text("max\n")
    Context(shipped_f32, n_ctx=256).close()
    limit.write_text("20000\n")
    with pytest.raises(InvalidRequestError, match="n_ctx=256 takes"):
        Context(shipped_f32, n_ctx=256)
    limit.unlink()
    swap.write_text("MemTotal: 8 kB\nSwapTotal:  20 kB\n")
    with pytest.raises(InvalidRequestError, match="n_ctx=256 takes"):
        Context(shipped_f32, n_ctx=256)
