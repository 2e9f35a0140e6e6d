"""Tests of the types of weights in a model's files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from makers.make_model import make_model
from makers.model_shapes import PRESETS
from makers.random_weights import n_bytes
from makers.weight_mixes import tensor_types

from pymtp import ModelLoadError
from pymtp.hub.weight_types import TYPES, weight_types


def test_types_have_the_names_and_sizes_of_the_gguf_package() -> None:
    inner = {GGMLQuantizationType.Q8_1, GGMLQuantizationType.Q8_K}  # of activations only
    known = {int(kind): (kind.name.lower(), *sizes) for kind, sizes in GGML_QUANT_SIZES.items() if kind not in inner}
    assert {number: (name.lower(), *sizes) for number, (name, *sizes) in TYPES.items()} == known


@pytest.mark.parametrize("split", [0, 20])
def test_weight_types_count_the_tensors_and_bytes_of_all_parts(split: int, tmp_path: Path) -> None:
    first, *_ = make_model("tiny-moe", tmp_path / "m.gguf", weight_type="nvfp4", split_max_tensors=split, weights=False)
    tensors, sizes = Counter[str](), Counter[str]()
    for tensor, kind in tensor_types(PRESETS["tiny-moe"], "nvfp4"):
        tensors[kind.name.lower()] += 1
        sizes[kind.name.lower()] += n_bytes(tensor.size, kind)
    found = weight_types([first])
    assert {kind.name: kind.tensors for kind in found} == tensors
    assert {kind.name: kind.bytes for kind in found} == sizes
    assert [kind.bytes for kind in found] == sorted(sizes.values(), reverse=True)
    assert sum(kind.tensors for kind in weight_types([first, first])) == 2 * sum(tensors.values())


def test_weight_types_refuse_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for name in ("m.gguf", "none.gguf"):
        with pytest.raises(ModelLoadError, match=name):
            weight_types([tmp_path / name])
