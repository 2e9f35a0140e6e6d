"""Claims about how much of a machine's memory prefixes may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymtp import LLM, InvalidRequestError, host_memory
from pymtp.context import Context
from pymtp.host_memory import MOST, default_cache_bytes
from pymtp.memory import DeviceMemory
from pymtp.model import Model


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


def test_a_context_that_the_memory_does_not_hold_is_refused_before_it_is_written_to(
    monkeypatch: pytest.MonkeyPatch, dense: Model
) -> None:
    """The system would give the memory, and end the process once there is none left."""
    with Context(dense, n_ctx=4096, n_seq_max=2, draft_tokens=3) as fits:
        (used,) = fits.memory()
    machine(monkeypatch, used.total - used.weights - 2**20)
    with pytest.raises(InvalidRequestError, match=r"n_ctx=4096 with n_seq_max=2 takes 0\.\d GiB of memory"):
        Context(dense, n_ctx=4096, n_seq_max=2, draft_tokens=3)
    with Context(dense, n_ctx=1024, n_seq_max=2, draft_tokens=3) as fits:
        assert fits.n_ctx == 1024


def test_a_small_context_is_not_planned(monkeypatch: pytest.MonkeyPatch, dense: Model) -> None:
    def plan(*_: object, **__: object) -> None:
        raise AssertionError("it takes a moment, of each context")

    monkeypatch.setattr(host_memory, "plan_memory", plan)
    Context(dense, n_ctx=4096).close()


def test_the_plan_is_of_the_file_that_was_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, demo: Path) -> None:
    """Where the path means another by now, nothing is known."""
    current = tmp_path / "model.gguf"
    current.symlink_to(demo)
    with Model(current) as model:
        machine(monkeypatch, 2**20)
        with pytest.raises(InvalidRequestError, match="GiB of memory"):
            Context(model, n_ctx=256)
        current.unlink()
        Context(model, n_ctx=256).close()
