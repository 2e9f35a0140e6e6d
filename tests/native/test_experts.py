"""Tests of mixtures of experts: the output of each chosen expert is multiplied by its weight."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from makers.make_model import make_model
from numpy.typing import NDArray

from pymtp import Model
from pymtp.context.context import Context

TOKENS = list(range(60, 76))


def logits(path: Path, n_tokens: int) -> NDArray[np.float32]:
    with Model(path) as model, Context(model, n_ctx=256, n_threads=2, draft_tokens=0) as context:
        return context.prefill_logits(TOKENS[:n_tokens])


@pytest.mark.parametrize("n_tokens", [1, 3, 16])
def test_equal_experts_give_the_output_of_one_expert(tmp_path: Path, n_tokens: int) -> None:
    (two,) = make_model("tiny-moe", tmp_path / "two.gguf", weight_type="f32")
    one = tmp_path / "one.gguf"
    reader = GGUFReader(two, "r+")
    for tensor in reader.tensors:
        if tensor.name.endswith("_exps.weight"):
            tensor.data[1:] = tensor.data[0]
    reader.data.flush()
    shutil.copy(two, one)
    reader = GGUFReader(one, "r+")
    reader.fields["qwen35moe.expert_used_count"].parts[-1][0] = 1
    reader.data.flush()
    assert np.allclose(logits(one, n_tokens), logits(two, n_tokens), atol=1e-4)
    assert np.abs(logits(two, n_tokens)).max() > 0.1
