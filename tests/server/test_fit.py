"""Tests of the context length and the number of slots that a server chooses by the free memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymtp.model.model import Model
from pymtp.options import LLMOptions
from pymtp.server import memory
from pymtp.server.memory import FITTED, HOST, MAX_CTX, MAX_SLOTS, Fit, choose_fit, fit_options, plan_bytes
from pymtp.server.process.worker import load_model
from pymtp.server.process.worker_config import WorkerConfig
from pymtp.server.settings import ServerSettings

TOKEN = 1000  # bytes of a token in a slot
GB = 10**9


def plan(n_ctx: int, n_seq_max: int) -> dict[str, tuple[int, int]]:
    return {HOST: (GB, TOKEN * n_ctx * n_seq_max)}


@pytest.mark.parametrize(
    ("free", "trained", "fit"),
    [
        (100 * GB, 262_144, Fit(MAX_CTX, MAX_SLOTS)),
        (100 * GB, 40_960, Fit(40_960, MAX_SLOTS)),
        (1.5 * GB, 262_144, Fit(131_072, 1)),  # one long context rather than several short ones
        (2.3 * GB, 262_144, Fit(131_072, 2)),
        (1.1 * GB, 262_144, Fit(32_768, 1)),
        (1.1 * GB, 4096, Fit(4096, MAX_SLOTS)),
        (0.5 * GB, 262_144, Fit(8192, 1)),  # not even the weights fit
    ],
)
def test_one_long_context_comes_first_and_then_slots(free: float, trained: int, fit: Fit) -> None:
    assert choose_fit(plan, {HOST: int(free)}, trained) == fit


def test_given_values_stay() -> None:
    free = {HOST: 2 * GB}
    assert choose_fit(plan, free, 262_144, n_ctx=8192) == Fit(8192, 4)
    assert choose_fit(plan, free, 262_144, n_seq_max=8) == Fit(32_768, 8)
    assert choose_fit(plan, free, 262_144, n_ctx=200_000, n_seq_max=9) == Fit(200_000, 9)


def test_the_scarcest_device_decides_and_devices_without_a_limit_do_not() -> None:
    def split(n_ctx: int, n_seq_max: int) -> dict[str, tuple[int, int]]:
        return plan(n_ctx, n_seq_max) | {"GPU0": (GB, TOKEN * n_ctx * n_seq_max)}

    assert choose_fit(split, {HOST: 100 * GB, "GPU0": int(1.1 * GB)}, 262_144) == Fit(32_768, 1)
    assert choose_fit(split, {HOST: 100 * GB}, 262_144) == Fit(MAX_CTX, MAX_SLOTS)


def test_shipped_model_keeps_its_small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: {HOST: 100 * GB})
    chosen = fit_options(LLMOptions(), FITTED)
    assert (chosen.n_ctx, chosen.n_seq_max) == (8192, 4)
    assert fit_options(LLMOptions(n_ctx=512), ()) == LLMOptions(n_ctx=512)


def test_choice_by_the_header_is_that_by_the_loaded_model(demo: Path) -> None:
    with Model(demo) as loaded:
        for mib in (8, 20, 40, 100):
            free = {HOST: mib * 2**20}
            by_header = fit_options(LLMOptions(demo), ("n_seq_max",), free=free)
            by_model = fit_options(LLMOptions(demo), ("n_seq_max",), free=free, model=loaded)
            assert abs(by_header.n_seq_max - by_model.n_seq_max) <= 1  # only one of them counts compute buffers


def test_planned_bytes_of_a_worker_count_its_cache_and_grow_with_its_slots(demo: Path) -> None:
    one, four = (plan_bytes(LLMOptions(demo, n_seq_max=n, cache_bytes=0))[HOST] for n in (1, 4))
    assert four > one > memory.WORKER_BYTES
    assert one > plan_bytes(LLMOptions(demo, draft_text=0, cache_bytes=0))[HOST]
    assert plan_bytes(LLMOptions(demo, cache_bytes=2**30))[HOST] == one + 2**30


def test_worker_says_what_it_has_chosen(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("pymtp.server.process.worker.free_memory", lambda: {HOST: 100 * GB})
    monkeypatch.setattr(memory, "free_memory", lambda: {HOST: 100 * GB})
    config = WorkerConfig(ServerSettings(), LLMOptions(n_threads=1, draft_tokens=0), fit=FITTED)
    with caplog.at_level("INFO", "pymtp.server"), load_model(config) as llm:
        n_ctx, n_seq_max = llm.context.n_ctx, llm.context.n_seq_max
    llm.model.close()
    assert (n_ctx, n_seq_max) == (8192, 4)
    (record,) = (record for record in caplog.records if record.getMessage() == "slots and tokens of each")
    fields = record.fields  # type: ignore[attr-defined]
    assert (fields["n_ctx"], fields["n_seq_max"]) == (n_ctx, n_seq_max)
    assert fields["chosen"] == "n_ctx n_seq_max"
