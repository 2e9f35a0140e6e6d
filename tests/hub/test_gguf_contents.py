"""Tests of GGUF headers: a file is a model with a head, a model without one, a head alone, or no model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.hub import HEAD, HEAD_ALONE, TRUNK, gguf, number
from makers.gguf_parts import parse
from makers.head_file import write_head, write_pair
from makers.make_model import make_model

from pymtp import Model
from pymtp.errors import ModelLoadError
from pymtp.hub import gguf_header
from pymtp.hub.files import HubFile, group_models
from pymtp.hub.gguf_contents import HEAD as HEAD_ONLY
from pymtp.hub.gguf_contents import MODEL, GgufContents, inspect_model
from pymtp.hub.gguf_header import ReadAt, read_header

PART = "m-{:05}-of-{:05}.gguf"


def contents_of(*parts: bytes) -> GgufContents:
    """Return the contents of a model of one file, or of several parts."""
    names = ["m.gguf"] if len(parts) == 1 else [PART.format(i, len(parts)) for i in range(1, len(parts) + 1)]
    data = dict(zip(names, parts, strict=True))
    (model,) = group_models([HubFile(name, len(part)) for name, part in data.items()])
    return inspect_model(model, lambda file: reader(data[file.path]), "owner/name", "owner/name")


def reader(data: bytes) -> ReadAt:
    return lambda offset, n: data[offset : offset + n]


def read(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.parametrize("late", [False, True])
def test_contents_find_the_head_in_a_model(late: bool) -> None:
    it = contents_of(gguf(late=late))
    assert (it.kind, it.has_head, it.architecture) == (MODEL, True, "qwen35")


def test_contents_agree_with_the_loaded_model(demo: Path, headless: Path) -> None:
    for path in (demo, headless):
        with Model(path, vocab_only=True) as model:
            it = contents_of(read(path))
            assert (it.kind, it.architecture, it.has_head) == (MODEL, model.architecture, model.has_head)


@pytest.mark.parametrize("preset", ["tiny", "tiny-moe"])
def test_contents_distinguish_heads_and_trunks_that_the_converter_wrote(preset: str, tmp_path: Path) -> None:
    (whole,) = make_model(preset, tmp_path / "whole.gguf")
    trunk, head = (contents_of(read(path)) for path in write_pair(whole, tmp_path))
    assert (trunk.kind, trunk.has_head, trunk.announced) == (MODEL, False, False)
    assert (head.kind, head.has_head, head.reduced) == (HEAD_ONLY, True, False)
    assert head.width == trunk.width > 0


def test_contents_of_a_split_head_are_a_head(tmp_path: Path) -> None:
    (whole,) = make_model("tiny", tmp_path / "whole.gguf")
    parts = write_head(whole, tmp_path / "mtp.gguf", split_max_tensors=6)
    assert len(parts) > 2
    assert contents_of(*map(read, parts)).kind == HEAD_ONLY


def test_contents_have_no_head_if_the_file_has_only_the_key_of_one(demo: Path) -> None:
    """Fine-tunes that transformers saved have the key, but not the head."""
    saved = parse(read(demo))
    saved.tensors = [tensor for tensor in saved.tensors if b".nextn." not in tensor.name]
    for data in (gguf(tensors=TRUNK), saved.encoded()):
        it = contents_of(data)
        assert (it.kind, it.has_head, it.announced) == (MODEL, False, True)


def test_contents_have_no_head_without_the_key_that_announces_it() -> None:
    whole = contents_of(gguf(head=False, tensors=[*TRUNK, *HEAD]))
    assert (whole.kind, whole.has_head) == (MODEL, False)
    other = gguf(head=False, tensors=[*TRUNK, *HEAD], keys=[number("tokenizer.ggml.nextn_predict_layers", 1)])
    assert not contents_of(other).has_head
    alone = contents_of(gguf(head=False, tensors=["blk.4.nextn.eh_proj.weight", "blk.4.attn_norm.weight"]))
    assert (alone.kind, alone.has_head) == (HEAD_ONLY, False)


def test_contents_with_tensor_names_of_transformers_are_a_head() -> None:
    it = contents_of(gguf(tensors=["mtp.fc.weight", "mtp.layers.0.input_layernorm.weight", "token_embd.weight"]))
    assert (it.kind, it.has_head) == (HEAD_ONLY, False)


def test_contents_mark_a_head_for_part_of_the_vocabulary() -> None:
    assert contents_of(gguf(tensors=[*HEAD_ALONE, "d2t"])).reduced


@pytest.mark.parametrize(
    ("architecture", "kind", "what"),
    [
        ("clip", "model", "an image projector"),
        ("clip", "mmproj", "an image projector"),
        ("qwen35", "adapter", "an adapter"),
        ("qwen35", "imatrix", "an importance matrix"),
        ("imatrix", "", "an importance matrix"),
        ("dflash", "model", "a drafter of another kind"),
        ("dspark", "model", "a drafter of another kind"),
        ("eagle3", "model", "a drafter of another kind"),
    ],
)
def test_contents_name_other_kinds_of_files(architecture: str, kind: str, what: str) -> None:
    assert contents_of(gguf(head=False, architecture=architecture, kind=kind)).kind == what


def split(*tensors: Sequence[str], head: bool = True) -> list[bytes]:
    first, *others = tensors
    return [gguf(head=head, tensors=first), *(gguf(head=False, tensors=names, n_tokens=0) for names in others)]


def test_contents_of_a_split_model_find_the_head_in_any_part() -> None:
    both = [(TRUNK, ["blk.1.attn_norm.weight"], HEAD), ([], TRUNK[:1], ["token_embd.weight"], HEAD, ["output.weight"])]
    for tensors in both:
        it = contents_of(*split(*tensors))
        assert (it.kind, it.has_head) == (MODEL, True)
    absent = contents_of(*split(TRUNK, ["blk.1.attn_norm.weight"]))
    assert (absent.kind, absent.has_head, absent.announced) == (MODEL, False, True)
    alone = contents_of(*split([], *([name] for name in HEAD_ALONE)))
    assert (alone.kind, alone.has_head) == (HEAD_ONLY, True)


def test_contents_read_few_parts_of_a_split_model() -> None:
    """Thireus publishes models of hundreds of parts with one tensor each."""
    asked: list[str] = []
    parts = split([], *([f"blk.{i}.attn_norm.weight"] for i in range(4)), head=False)
    data = {PART.format(i, len(parts)): part for i, part in enumerate(parts, 1)}

    def note(file: HubFile) -> ReadAt:
        asked.append(file.path)
        return reader(data[file.path])

    (model,) = group_models([HubFile(name, len(part)) for name, part in data.items()])
    assert inspect_model(model, note, "owner/name", "owner/name").kind == MODEL
    assert asked == [PART.format(1, 5), PART.format(5, 5)]


@pytest.mark.parametrize("cut", [50, 2000, 170_000])
def test_truncated_header_is_an_error(cut: int) -> None:
    with pytest.raises(ModelLoadError, match=r"m is not a GGUF file, or it is damaged: it ends within its header"):
        read_header("m", reader(gguf()[:cut]))


def test_header_size_ends_before_the_weights() -> None:
    data = gguf()
    size = read_header("m", reader(data)).size
    assert read_header("m", reader(data[:size])).size == size
    with pytest.raises(ModelLoadError):
        read_header("m", reader(data[: size - 1]))


def test_header_with_too_many_dimensions_is_refused() -> None:
    data = bytearray(gguf(n_tokens=0))
    at = data.index(b"blk.0.attn_norm.weight") + len(b"blk.0.attn_norm.weight")
    data[at : at + 4] = (2**31).to_bytes(4, "little")
    with pytest.raises(ModelLoadError, match="a tensor has 2147483648 dimensions"):
        read_header("m", reader(bytes(data)))


@pytest.mark.parametrize("at", ["tensors", "keys", "strings"])
def test_header_with_too_many_entries_is_refused_at_once(at: str) -> None:
    data = bytearray(gguf())
    tokens = data.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    begin = {"tensors": 8, "keys": 16, "strings": tokens + 8}[at]
    data[begin : begin + 8] = (2**63).to_bytes(8, "little")
    read = list[int]()

    def note(offset: int, n: int) -> bytes:
        read.append(n)
        return bytes(data[offset : offset + n])

    with pytest.raises(ModelLoadError, match=f"it counts {2**63} entries, more than any model's"):
        read_header("m", note)
    assert len(read) == 1


def test_header_with_long_names_is_read_in_linear_time() -> None:
    begun = time.process_time()
    it = contents_of(gguf(tensors=[*TRUNK, f"blk.{'1' * 5000}.x"], architecture=f"{'1' * 1_000_000}x"))
    assert (it.kind, time.process_time() - begun < 2) == (MODEL, True)


@pytest.mark.parametrize("piece", [1, 100, 3000])
def test_header_is_the_same_when_it_is_read_in_small_pieces(
    piece: int, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_header("m", reader(read(demo)))
    monkeypatch.setattr(gguf_header, "_FIRST_READ", piece)
    assert read_header("m", reader(read(demo))) == whole
    assert len(whole.types) == len(whole.tensors) > 100
