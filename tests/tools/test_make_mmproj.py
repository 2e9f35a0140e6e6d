"""Tests of make_mmproj: projectors of random weights have the tensors, types and keys of converted ones."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from gguf import GGUFReader, GGUFWriter
from makers.gguf_types import dequantize
from makers.make_mmproj import WEIGHTS, make_mmproj
from makers.vision_shapes import PROJECTORS, VisionShape


def test_seed_makes_the_same_projector(tmp_path: Path) -> None:
    first, again, other = (
        make_mmproj("tiny", tmp_path / f"{i}.gguf", seed=seed).read_bytes() for i, seed in enumerate((5, 5, 6))
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("weight_type", WEIGHTS)
def test_projector_has_matrices_of_the_wanted_type_that_keep_the_variance(weight_type: str, tmp_path: Path) -> None:
    reader = GGUFReader(make_mmproj("tiny", tmp_path / "x.gguf", weight_type=weight_type))
    shape = PROJECTORS["tiny"]
    assert [(t.name, tuple(map(int, t.shape))) for t in reader.tensors] == [(t.name, t.ne) for t in shape.tensors()]
    for tensor in reader.tensors:
        kind, ne = tensor.tensor_type.name.lower(), tuple(map(int, tensor.shape))
        values = dequantize(tensor.data, tensor.tensor_type)
        if len(ne) == 1 or tensor.name == "v.position_embd.weight":
            assert kind == "f32"
            continue
        is_patch = tensor.name.startswith("v.patch_embd")
        assert kind == ("f32" if is_patch and weight_type != "f16" else weight_type)
        n_inputs = 2 * math.prod(ne[:-1]) if is_patch else ne[0]  # two frames are summed
        assert values.std() == pytest.approx(n_inputs**-0.5, rel=0.05)


def test_no_bias_or_scale_is_neutral(tmp_path: Path) -> None:
    # else one that is left out, or swapped with another, would go unnoticed
    reader = GGUFReader(make_mmproj("tiny", tmp_path / "x.gguf"))
    vectors = [tensor.data for tensor in reader.tensors if len(tensor.shape) == 1]
    assert all(vector.std() > 0.05 for vector in vectors)
    assert len({vector.tobytes() for vector in vectors}) == len(vectors)


# parameters of the vision tower with its merger, from the tensors of the published checkpoints
@pytest.mark.parametrize(("preset", "millions"), [("qwen3.5-0.8b", 100.59), ("qwen3.6-27b", 460.73)])
def test_preset_has_the_parameters_of_the_published_projector(preset: str, millions: float) -> None:
    assert PROJECTORS[preset].n_params / 1e6 == pytest.approx(millions, rel=5e-4)


def test_metadata_keys_are_those_that_a_vision_tower_needs(tmp_path: Path) -> None:
    shape = VisionShape(n_layer=1, n_embd=32, n_head=2, n_ff=64, n_out=96, side=4, mean=(0.1, 0.2, 0.3))
    fields = GGUFReader(make_mmproj(shape, tmp_path / "x.gguf")).fields
    assert fields["general.architecture"].contents() == "clip"
    assert fields["general.type"].contents() == "mmproj"
    assert fields["clip.projector_type"].contents() == "qwen3vl_merger"
    assert fields["clip.vision.image_size"].contents() == 64
    assert fields["clip.vision.projection_dim"].contents() == 96
    assert fields["clip.vision.image_mean"].contents() == [float(np.float32(x)) for x in shape.mean]


def test_unknown_preset_or_type_of_a_projector_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tools/models/make_mmproj.py", "huge", tmp_path / "x.gguf"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 2
    assert f"no projector is made for 'huge', but for {', '.join(PROJECTORS)}" in done.stderr
    with pytest.raises(ValueError, match="weights of a projector cannot be 'q4_0', but f32, f16, bf16, q8_0"):
        make_mmproj("tiny", tmp_path / "x.gguf", weight_type="q4_0")
    assert list(tmp_path.iterdir()) == []


def test_failed_make_mmproj_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(writer: GGUFWriter, progress: bool = False) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(GGUFWriter, "write_tensors_to_file", stop)
    with pytest.raises(OSError, match="disk full"):
        make_mmproj("tiny", tmp_path / "x.gguf")
    assert list(tmp_path.iterdir()) == []
