"""Tests of model files that announce a head but lack it: they are decoded without a head's drafts, with one warning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import make_llm
from makers.gguf_parts import GGUF, parse
from makers.gguf_variants import rewrite
from makers.make_model import make_model

from pymtp import InvalidRequestError, Model, ModelLoadError, SamplingParams

PROMPT = "def main() -> None:\n"
NEXTN = b".nextn."


def written(path: Path, **options: object) -> list[int]:
    with make_llm(path, **({"n_ctx": 128, "draft_tokens": "auto"} | options)) as llm:
        assert not llm.model.has_head
        return llm.generate(PROMPT, SamplingParams(24, ignore_eos=True)).token_ids


def changed(source: Path, target: Path, change: Callable[[GGUF], object]) -> Path:
    file = parse(source.read_bytes())
    change(file)
    target.write_bytes(file.encoded())
    return target


def drop(part: bytes) -> Callable[[GGUF], None]:
    """Leave out the tensors with `part` in their names."""

    def change(file: GGUF) -> None:
        file.tensors = [tensor for tensor in file.tensors if part not in tensor.name]

    return change


def rename(old: bytes, new: bytes) -> Callable[[GGUF], None]:
    def change(file: GGUF) -> None:
        for tensor in file.tensors:
            tensor.name = tensor.name.replace(old, new)

    return change


def announce(file: GGUF, n: int = 1) -> None:
    """Set nextn_predict_layers."""
    name = file.keys[0].values[0] + b".nextn_predict_layers"
    key = next(key for key in file.keys if key.name.endswith(b".block_count"))
    file.keys = [one for one in file.keys if one.name != name]
    file.keys.append(type(key)(name, key.kind, [n.to_bytes(4, "little")]))


def without_list(file: GGUF) -> None:
    """Mark recurrent blocks by their interval, as convert_hf_to_gguf.py writes them."""
    file.keys = [key for key in file.keys if not key.name.endswith(b"recurrent_layers")]


@pytest.fixture(scope="module")
def moe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = make_model("tiny-moe", tmp_path_factory.mktemp("moe") / "moe.gguf", weight_type="f32")
    return path


@pytest.mark.parametrize("listed", [True, False], ids=["blocks by a list", "blocks by an interval"])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_absent_head_does_not_change_the_text(
    demo: Path, moe_file: Path, tmp_path: Path, kind: str, listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = demo if kind == "dense" else moe_file
    block = b"blk.8." if kind == "dense" else b"blk.4."
    rewrite(source, tmp_path / "headless.gguf", drop_head=True)
    expected = written(tmp_path / "headless.gguf", draft_tokens=0)

    def lose(file: GGUF) -> None:
        drop(block)(file)
        if not listed:
            without_list(file)

    lost = changed(source, tmp_path / "lost.gguf", lose)
    with caplog.at_level(logging.WARNING, "pymtp.model"):
        assert written(lost) == expected
    (said,) = [record.getMessage() for record in caplog.records if record.name == "pymtp.model"]
    assert said.startswith("lost.gguf: ")
    assert f"announces a head in block {block[4:5].decode()}, of which the file has no tensor" in said


@pytest.mark.parametrize("listed", [True, False], ids=["blocks by a list", "blocks by an interval"])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_last_block_of_a_trunk_is_not_used_as_a_head(
    demo: Path, moe_file: Path, tmp_path: Path, kind: str, listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rewrite(demo if kind == "dense" else moe_file, tmp_path / "headless.gguf", drop_head=True)
    expected = written(tmp_path / "headless.gguf", draft_tokens=0)

    def boast(file: GGUF) -> None:
        announce(file)
        if not listed:
            without_list(file)

    boasting = changed(tmp_path / "headless.gguf", tmp_path / "boasting.gguf", boast)
    with caplog.at_level(logging.WARNING, "pymtp.model"):
        assert written(boasting) == expected
    assert "which is one of the trunk's" in caplog.text
    with Model(boasting) as model, Model(tmp_path / "headless.gguf") as headless:
        assert (model.n_layer, model.n_params) == (headless.n_layer, headless.n_params)


def test_announced_block_without_head_tensors_is_ignored(
    demo: Path, headless: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pymtp.model"):
        assert written(changed(demo, tmp_path / "half.gguf", drop(NEXTN))) == written(headless, draft_tokens=0)
    assert "has no tensor of the kind blk.8.nextn.eh_proj.weight: the block is not used" in caplog.text


def test_absent_head_gives_no_warning_without_drafts(
    demo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = changed(demo, tmp_path / "lost.gguf", drop(b"blk.8."))
    with caplog.at_level(logging.WARNING, "pymtp.model"):
        written(lost, draft_tokens=0)
        with Model(lost, mtp=False), Model(lost, vocab_only=True) as looked_at:
            assert "block 8" in looked_at.head_absent
    assert not [record for record in caplog.records if record.name == "pymtp.model"]
    with Model(demo) as model:
        assert model.head_absent == ""


def test_drafts_without_the_announced_head_are_refused_with_the_reason(demo: Path, tmp_path: Path) -> None:
    lost = changed(demo, tmp_path / "lost.gguf", drop(b"blk.8."))
    with pytest.raises(
        InvalidRequestError, match=r"lost.gguf has none: use draft_tokens=0, .* its own \(qwen35.nextn_predict_lay"
    ):
        make_llm(lost, draft_tokens=3)


def test_head_with_a_missing_tensor_is_refused_and_loads_without_drafts(demo: Path, tmp_path: Path) -> None:
    damaged = changed(demo, tmp_path / "damaged.gguf", drop(b"blk.8.nextn.hnorm"))
    with pytest.raises(ModelLoadError, match=r"'blk.8.nextn.hnorm.weight' not found"):
        Model(damaged)
    with make_llm(damaged, n_ctx=64, draft_tokens=0) as llm:
        assert llm.generate(PROMPT, SamplingParams(2, ignore_eos=True)).token_ids


NAMED_OTHERWISE: dict[str, tuple[Callable[[GGUF], object], str]] = {
    "a checkpoint's names": (
        rename(b"blk.8.nextn.eh_proj", b"mtp.fc"),
        r"tensor 'mtp.fc.weight': a head under names that llama.cpp does not know; it knows blk.8.nextn.eh_proj.weight",
    ),
    "a checkpoint's names, all": (rename(b"blk.8.", b"model.mtp.layers.0."), r"'model.mtp.layers.0.*' and 14 more"),
    "no block": (rename(b"blk.8.nextn.", b"nextn."), r"tensor 'nextn.eh_proj.weight' and 3 more"),
    "a block too many": (rename(b"blk.8.", b"blk.9."), r"'blk.9.nextn.*' and 3 more: .* that is block 8"),
    "another block": (rename(b"blk.8.nextn.", b"blk.0.nextn."), r"'blk.0.nextn.*' and 3 more: .* that is block 8"),
    "a map of the vocabulary": (rename(b"blk.8.nextn.hnorm.weight", b"d2t"), r"tensor 'd2t'"),
    "no announcement": (lambda file: announce(file, 0), r"qwen35.nextn_predict_layers must be 1"),
}


@pytest.mark.parametrize("name", NAMED_OTHERWISE)
def test_head_with_other_tensor_names_is_refused_with_these_names(demo: Path, tmp_path: Path, name: str) -> None:
    change, why = NAMED_OTHERWISE[name]
    path = changed(demo, tmp_path / "model.gguf", change)
    for mtp in (True, False):
        with pytest.raises(ModelLoadError, match=why):
            Model(path, mtp=mtp)
