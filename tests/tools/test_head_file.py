"""Tests of write_head and write_pair: trunk and head files hold the tensors and metadata of a converter's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from makers.gguf_read import open_gguf
from makers.head_file import SHARED, read_tensor, tied_output, write_head, write_pair
from makers.make_model import make_model

from pymtp import LLM, SamplingParams


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("tiny", tmp_path_factory.mktemp("models") / "tiny.gguf")[0]


def types_of(path: Path) -> dict[str, GGMLQuantizationType]:
    return {tensor.name: tensor.tensor_type for tensor in open_gguf(path).tensors}


@pytest.mark.parametrize("preset", ["tiny", "tiny-moe"])
def test_trunk_and_head_split_the_model_s_tensors(preset: str, tmp_path: Path) -> None:
    (whole,) = make_model(preset, tmp_path / "whole.gguf")
    trunk, head = write_pair(whole, tmp_path)
    inside, above, apart = (types_of(path) for path in (whole, trunk, head))
    assert above | apart == inside
    assert set(above) & set(apart) == set(SHARED) & set(inside)
    assert all(name.startswith("blk.4.") for name in set(apart) - set(SHARED))


def test_head_file_has_the_metadata_and_the_trunk_names_no_head(tiny: Path, tmp_path: Path) -> None:
    trunk, head = (open_gguf(path) for path in write_pair(tiny, tmp_path))
    whole = open_gguf(tiny)
    assert [key for key in head.fields if "GGUF" not in key] == [key for key in whole.fields if "GGUF" not in key]
    assert head.fields["qwen35.block_count"].contents() == trunk.fields["qwen35.block_count"].contents() + 1 == 5
    assert head.fields["qwen35.nextn_predict_layers"].contents() == 1
    assert not any("nextn" in name for name in (*trunk.fields, *(t.name for t in trunk.tensors)))


def test_trunk_generates_the_model_s_tokens(tiny: Path, tmp_path: Path) -> None:
    params, texts = SamplingParams(max_tokens=20, ignore_eos=True), []
    for path in (tiny, write_pair(tiny, tmp_path)[0]):
        with LLM(path, n_ctx=128, n_threads=1, draft_tokens=0) as llm:
            texts.append(llm.generate(list(range(30)), params).token_ids)
    assert texts[0] == texts[1]


def test_head_file_has_the_given_types_names_and_tensors(tiny: Path, tmp_path: Path) -> None:
    zeros = np.zeros(96, np.float32)
    (head,) = write_head(
        tiny,
        tmp_path / "head.gguf",
        types={"*": "q4_0", "token_embd.weight": "f16"},
        tensors={"blk.4.nextn.hnorm.weight": zeros, "blk.4.attn_q_norm.weight": None, **tied_output(tiny)},
        rename={"blk.4.nextn.eh_proj.weight": "mtp.fc.weight"},
        metadata={"qwen35.nextn_predict_layers": None, "general.name": "another"},
    )
    types, fields = types_of(head), open_gguf(head).fields
    assert types["output.weight"] == types["mtp.fc.weight"] == GGMLQuantizationType.Q4_0
    assert types["token_embd.weight"] == GGMLQuantizationType.F16
    assert types["blk.4.nextn.enorm.weight"] == GGMLQuantizationType.F32
    assert "blk.4.attn_q_norm.weight" not in types
    assert "blk.4.nextn.eh_proj.weight" not in types
    assert not read_tensor(head, "blk.4.nextn.hnorm.weight").any()
    assert "qwen35.nextn_predict_layers" not in fields
    assert fields["general.name"].contents() == "another"
    quantized, original = read_tensor(head, "output.weight"), read_tensor(tiny, "token_embd.weight")
    assert np.abs(quantized - original).max() < 0.2 * np.abs(original).max()


def test_head_split_into_several_files_has_the_tensors_of_a_single_file(tiny: Path, tmp_path: Path) -> None:
    (whole,) = write_head(tiny, tmp_path / "one.gguf")
    parts = write_head(tiny, tmp_path / "parts.gguf", split_max_tensors=5)
    assert len(parts) == 4
    assert parts[0].name == "parts-00001-of-00004.gguf"
    assert {name: kind for part in parts for name, kind in types_of(part).items()} == types_of(whole)
