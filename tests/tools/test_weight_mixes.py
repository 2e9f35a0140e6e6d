"""Tests of the mixes of types that models are published in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from makers.make_model import make_model
from makers.model_shapes import PRESETS, Shape
from makers.random_weights import n_bytes
from makers.weight_mixes import LLAMA, PUBLISHED, tensor_types

from pymtp import Model
from pymtp.context.context import Context

DENSE = replace(PRESETS["7m"], n_layer=4, linear_v_heads=8, n_ff=512)
EXPERTS = replace(DENSE, n_ff=0, n_expert=4, n_expert_used=2, n_ff_expert=256, n_ff_shared=256, tied=False)


def types(shape: Shape, mix: str) -> dict[str, T]:
    return {tensor.name: kind for tensor, kind in tensor_types(shape, mix)}


# files without a head; their sizes are listed in huggingface.co/sokann/Qwen3.6-27B-GGUF-5.076bpw and -4.256bpw
@pytest.mark.parametrize(
    ("mix", "gib", "near"),
    [("q4_k_m", 15.401, 1e-4), ("mix-iq4_xs", 14.036, 1e-4), ("ud-q4_k_xl", 16.393, 5e-3)],
)
def test_mix_has_the_size_of_the_published_file_of_the_27b(mix: str, gib: float, near: float) -> None:
    shape = replace(PRESETS["qwen3.6-27b"], head=False)
    size = sum(n_bytes(tensor.size, kind) for tensor, kind in tensor_types(shape, mix))
    assert size / 2**30 == pytest.approx(gib, rel=near)


def test_mix_gives_rows_that_do_not_fit_another_type() -> None:
    assert types(PRESETS["7m"], "q4_k_m")["blk.0.ffn_down.weight"] == T.Q8_0  # 448 columns
    assert types(PRESETS["7m"], "q4_k_s")["blk.0.ssm_out.weight"] == T.Q5_0  # 384 columns
    assert types(PRESETS["7m"], "mix-iq2_xxs")["blk.0.ssm_out.weight"] == T.IQ4_NL
    assert types(replace(PRESETS["7m"], n_ff=440), "q4_k_m")["blk.0.ffn_down.weight"] == T.F16


def test_several_types_take_turns_over_the_matrices() -> None:
    found = [kind for kind in types(EXPERTS, "iq1_s+q4_1+mxfp4").values() if kind != T.F32]
    assert found == [(T.IQ1_S, T.Q4_1, T.MXFP4)[i % 3] for i in range(len(found))]
    assert len(found) > 50


def test_mix_with_scales_has_them_for_each_of_its_matrices() -> None:
    found = types(EXPERTS, "nvfp4")
    matrices = {name.removesuffix(".weight") for name, kind in found.items() if kind == T.NVFP4}
    assert {name.removesuffix(".scale") for name in found if name.endswith(".scale")} == matrices
    assert {name.removesuffix(".input_scale") for name in found if name.endswith(".input_scale")} == matrices
    assert {"output", "blk.0.ffn_up_exps"} <= matrices
    assert "token_embd" not in matrices


@pytest.mark.parametrize("mix", [*PUBLISHED, "mxfp4-moe", "mix-iq1_m"])
def test_model_of_a_mix_drafts_and_has_finite_logits_that_vary(mix: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_model(EXPERTS, path, weight_type=mix)
    with Model(path) as model, Context(model, n_ctx=128, n_threads=1, draft_tokens=1) as context:
        for logits in (context.prefill(range(60)), context.draft(1)):
            assert np.isfinite(logits).all()
            assert 0.5 < logits.std() < 2


def test_every_mix_has_a_file_type(tmp_path: Path) -> None:
    for mix in (*LLAMA, *PUBLISHED):
        make_model("tiny", tmp_path / "model.gguf", weight_type=mix, weights=False)
