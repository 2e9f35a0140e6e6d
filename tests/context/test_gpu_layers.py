"""Tests of n_gpu_layers="auto": as many layers as fit by the memory plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm
from hypothesis import given
from hypothesis import strategies as st
from makers.lora import make_delta, write_adapter

from pymtp import InvalidRequestError, Model, ModelLoadError
from pymtp.context import gpu_layers
from pymtp.context.gpu_layers import Plan, layers_that_fit
from pymtp.context.memory import DeviceMemory, plan_memory

ALL = 30  # number of layers, including the output layer and the head


def simulated_plan(weights: Sequence[int], shares: Sequence[int]) -> Plan:
    """Return the memory plan of a machine with a GPU for each share; layers are offloaded from the last one on."""

    def plan(layers: int) -> list[DeviceMemory]:
        n = len(weights) if layers < 0 else layers
        taken = sum(weights[len(weights) - n :]) + (50 if n else 0)
        host = DeviceMemory("CPU", True, weights=10**9)
        return [host] + [
            DeviceMemory(f"GPU{i}", False, weights=taken * share // sum(shares)) for i, share in enumerate(shares)
        ]

    return plan


SIZES = st.lists(st.integers(1, 100), min_size=ALL, max_size=ALL)
SHARES = st.lists(st.integers(1, 5), min_size=1, max_size=3)
FREE = st.integers(-100, 4000)


def free_memory(free: int, shares: Sequence[int]) -> dict[str, int]:
    return {f"GPU{i}": free for i in range(len(shares))}


@given(SIZES, SHARES, FREE)
def test_planned_gpu_layers_fit_and_one_more_layer_does_not(weights: list[int], shares: list[int], free: int) -> None:
    plan = simulated_plan(weights, shares)

    def fits(layers: int) -> bool:
        return all(m.host or m.total <= free for m in plan(layers))

    layers = layers_that_fit(plan, free_memory(free, shares), ALL)
    assert layers == 0 or fits(layers)
    assert layers == -1 or not fits(layers + 1)


@given(SIZES, SHARES, FREE, st.integers(0, 500))
def test_planned_gpu_layers_grow_with_memory(weights: list[int], shares: list[int], free: int, more: int) -> None:
    plan = simulated_plan(weights, shares)
    less, larger = (layers_that_fit(plan, free_memory(n, shares), ALL) % (ALL + 1) for n in (free, free + more))
    assert less <= larger


@given(st.lists(st.integers(0, 1000), min_size=ALL + 1, max_size=ALL + 1), st.integers(0, 1000))
def test_planned_gpu_layers_fit_with_nonmonotonic_plans(totals: list[int], free: int) -> None:
    def plan(layers: int) -> list[DeviceMemory]:
        return [DeviceMemory("GPU0", False, weights=totals[layers])]

    layers = layers_that_fit(plan, {"GPU0": free}, ALL)
    assert layers == 0 or totals[layers] <= free


def test_gpu_layer_plan_ignores_a_device_without_a_name() -> None:
    assert layers_that_fit(simulated_plan([1] * ALL, [1, 1]), {"GPU0": 10**6}, ALL) == 0


def test_gpu_layer_search_makes_few_plans() -> None:
    asked = []
    plan = simulated_plan([1] * 100, [1])

    def counted(layers: int) -> Sequence[DeviceMemory]:
        asked.append(layers)
        return plan(layers)

    assert layers_that_fit(counted, {"GPU0": 80}, 100) == 30
    assert len(asked) <= 8


@pytest.fixture
def gpu_of_8_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_layers, "free_gpu_memory", lambda: {"GPU0": 8 << 30})


@pytest.mark.usefixtures("gpu_of_8_gib")
@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"lora": "gone.gguf"}, ModelLoadError, "no such adapter: .*gone.gguf"),
        ({"n_batch": "x"}, InvalidRequestError, "n_batch='x' must be"),
        ({"n_ubatch": None}, InvalidRequestError, "n_ubatch=None must be"),
        ({"n_ctx": "x"}, InvalidRequestError, "n_ctx='x' must be"),
        ({"draft_tokens": 99}, InvalidRequestError, "draft_tokens=99 must be"),
    ],
    ids=str,
)
def test_gpu_layer_plan_refuses_invalid_options(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make_llm(**{"n_ctx": 256, "n_gpu_layers": "auto", "draft_tokens": "auto", **options})


@pytest.mark.usefixtures("gpu_of_8_gib")
@pytest.mark.parametrize(("drafts", "lora", "head"), [(0, False, False), (0, True, True), (2, False, True)])
def test_gpu_layer_plan_counts_a_loaded_head(
    demo_f32: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafts: int, lora: bool, head: bool
) -> None:
    asked = []

    def planned(model: Model, *arguments: Any, **options: Any) -> list[DeviceMemory]:
        asked.append(model.mtp)
        return plan_memory(model, *arguments, **options)

    monkeypatch.setattr(gpu_layers, "plan_memory", planned)
    delta = make_delta(demo_f32, ["blk.0.ffn_up.weight"], seed=1)
    adapters = [write_adapter(tmp_path / "a.gguf", delta, alpha=4.0)] if lora else []
    with make_llm(n_ctx=256, draft_tokens=drafts, n_gpu_layers="auto", lora=adapters) as llm:
        assert llm.model.mtp == head
    assert set(asked) == {head}
