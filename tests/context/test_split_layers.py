"""Tests of models that are split over a GPU and the host: the text is the same as on the CPU.

Weights and caches are F32, so that rounding differs far less than two logits do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm
from helpers.devices import GPUS, ON_CPU
from makers.head_file import write_pair
from makers.make_model import make_model

from pymtp import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS and not ON_CPU, reason="needs a GPU")]

PROMPT = list(range(100, 107))  # lavapipe 22.3 ends the process with nine tokens or more: docs/how-to/vulkan.md

# options, and whether part of the model stays in the host's memory with them
PLACINGS: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"n_gpu_layers": 2}, True),
    ({"n_gpu_layers": "auto"}, False),
    ({"n_cpu_moe": 1}, True),
    ({"n_cpu_moe": 99}, True),
    ({"override_tensor": {"ffn_(gate|up)_shexp": "CPU"}}, True),
    ({"split_mode": "none", "main_gpu": 0}, False),
    ({"offload_kqv": False}, True),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model with experts and random weights in F32."""
    (path,) = make_model("tiny-moe", tmp_path_factory.mktemp("models") / "moe.gguf", weight_type="f32")
    return path


def generate_tokens(llm: LLM) -> list[int]:
    return llm.generate(PROMPT, SamplingParams(8, ignore_eos=True)).token_ids


@pytest.fixture(scope="module")
def expected(path: Path) -> list[int]:
    with make_llm(path, n_gpu_layers=0, type_k="f32", type_v="f32") as llm:
        return generate_tokens(llm)


def gpu_bytes(llm: LLM) -> int:
    """Return the bytes of weights, K and V on GPUs."""
    return sum(device.weights + device.kv for device in llm.context.memory() if not device.host)


@pytest.fixture(scope="module")
def all_gpu_bytes(path: Path) -> int:
    with make_llm(path, type_k="f32", type_v="f32") as llm:
        return gpu_bytes(llm)


@pytest.mark.parametrize(("placing", "part"), PLACINGS, ids=str)
def test_model_split_over_gpu_and_host_writes_the_same_text_as_on_the_cpu(
    path: Path, expected: list[int], all_gpu_bytes: int, placing: dict[str, Any], part: bool
) -> None:
    with make_llm(path, type_k="f32", type_v="f32", **placing) as llm:
        assert generate_tokens(llm) == expected
        held = gpu_bytes(llm)
    if GPUS:
        assert 0 < held < all_gpu_bytes if part else held == all_gpu_bytes


@pytest.mark.parametrize("placing", [{}, {"n_gpu_layers": 2}, {"n_cpu_moe": 99}], ids=str)
def test_separate_head_is_placed_like_a_head_in_the_model(
    path: Path, expected: list[int], placing: dict[str, Any], tmp_path: Path
) -> None:
    trunk, head = write_pair(path, tmp_path)
    options: dict[str, Any] = {"type_k": "f32", "type_v": "f32", **placing}
    with make_llm(path, **options) as inside, make_llm(trunk, head=head, **options) as apart:
        assert generate_tokens(apart) == expected
        assert generate_tokens(inside) == expected
        assert apart.context.memory() == inside.context.memory()
