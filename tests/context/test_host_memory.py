"""Claims about how much of a machine's memory prefixes may take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pymtp import LLM, InvalidRequestError
from pymtp.context import host_memory
from pymtp.context.context import Context
from pymtp.context.host_memory import MOST, default_cache_bytes
from pymtp.context.memory import DeviceMemory
from pymtp.model.model import Model


def machine(monkeypatch: pytest.MonkeyPatch, total: int, *limits: Path) -> None:
    devices = [{"name": "GPU", "memory_total": 2**20}, {"name": "CPU", "memory_total": total}]
    monkeypatch.setattr(host_memory, "build_info", lambda: {"devices": devices})
    monkeypatch.setattr(host_memory, "LIMITS", [str(path) for path in limits])


def test_a_quarter_of_the_machines_memory_and_no_more_than_8_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 16 * 2**30)
    assert default_cache_bytes() == 4 * 2**30
    machine(monkeypatch, 2**40)
    assert default_cache_bytes() == MOST == 8 * 2**30


def test_weights_stay_in_memory_where_they_fill_most_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 32 * 2**30)
    for used, found in ((16, 8), (28, 2), (40, 0)):
        taken = [DeviceMemory("GPU", host=False, weights=2**40), DeviceMemory("CPU", host=True, weights=used * 2**30)]
        assert default_cache_bytes(taken) == found * 2**30


def test_an_llm_counts_what_its_model_and_contexts_take(monkeypatch: pytest.MonkeyPatch, demo: Path) -> None:
    with LLM(demo, n_ctx=256, draft_tokens=0) as llm:
        used = sum(device.total for device in llm.context.memory())
    machine(monkeypatch, used + 2**21)
    with LLM(demo, n_ctx=256, draft_tokens=0) as llm:
        assert llm.engine.prefixes.store.budget.limit == 2**20


def test_what_a_container_may_take_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    machine(monkeypatch, 2**40, tmp_path / "missing", limit)
    limit.write_text("max\n")
    assert default_cache_bytes() == MOST
    limit.write_text(f"{2**30}\n")
    assert default_cache_bytes() == 2**28


@pytest.mark.parametrize("n_ctx", [0, 8192])
@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_context_that_the_memory_does_not_hold_is_refused_before_it_is_written_to(
    monkeypatch: pytest.MonkeyPatch, dense: Model, tmp_path: Path, n_ctx: int, draft_tokens: int
) -> None:
    """The system would give the memory, and end the process once there is none left."""
    options: dict[str, Any] = {"n_ctx": n_ctx, "n_seq_max": 2, "draft_tokens": draft_tokens}
    with Context(dense, **options) as fits:
        (used,) = fits.memory()
    held = used.kv + used.states + used.head_kv
    cells = 2 * 8192 * (2 if draft_tokens else 1)  # llama.cpp notes some 50 bytes of each
    (tmp_path / "meminfo").write_text("SwapTotal: 0 kB\n")
    monkeypatch.setattr(host_memory, "SWAP", tmp_path / "meminfo")
    machine(monkeypatch, held + 64 * cells)
    Context(dense, **options).close()
    machine(monkeypatch, held + 32 * cells)
    with pytest.raises(InvalidRequestError, match=r"n_ctx=8192 with n_seq_max=2 takes at least 0\.\d GiB of memory"):
        Context(dense, **options)


def test_swap_counts_as_far_as_a_container_may_take_it(
    monkeypatch: pytest.MonkeyPatch, dense: Model, tmp_path: Path
) -> None:
    swap, limit = tmp_path / "meminfo", tmp_path / "memory.swap.max"
    monkeypatch.setattr(host_memory, "SWAP", swap)
    monkeypatch.setattr(host_memory, "SWAP_LIMIT", limit)
    machine(monkeypatch, 0)
    Context(dense, n_ctx=256).close()  # nothing is known of swap
    swap.write_text("MemTotal: 8 kB\nSwapTotal:  2000000 kB\n")
    Context(dense, n_ctx=256).close()
    limit.write_text("max\n")
    Context(dense, n_ctx=256).close()
    limit.write_text("20000\n")
    with pytest.raises(InvalidRequestError, match="n_ctx=256 takes"):
        Context(dense, n_ctx=256)
    limit.unlink()
    swap.write_text("MemTotal: 8 kB\nSwapTotal:  20 kB\n")
    with pytest.raises(InvalidRequestError, match="n_ctx=256 takes"):
        Context(dense, n_ctx=256)
