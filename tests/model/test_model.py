"""Tests of Model: files that load, files that are refused, and the vocabulary."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType
from hypothesis import given
from hypothesis import strategies as st
from makers.gguf_read import open_gguf
from makers.gguf_variants import rewrite

from pymtp import ClosedError, InvalidRequestError, ModelLoadError
from pymtp.model.files import file_digest
from pymtp.model.model import Model

DEMO = Model(vocab_only=True)


@given(st.text())
def test_tokenize_and_detokenize_keep_the_text(text: str) -> None:
    tokens = DEMO.tokenize(text)
    if "<|" not in text:  # as detokenize omits special tokens
        assert DEMO.detokenize(tokens) == DEMO.normalized(text)


def test_tokenize_reads_special_tokens_and_detokenize_omits_them() -> None:
    (token,) = DEMO.tokenize("<|im_end|>")
    assert DEMO.ends_generation(token)
    assert DEMO.token_bytes(token) == b""


def test_detokenize_with_special_returns_special_tokens() -> None:
    text = "<|im_start|>user\nA<|im_end|>"
    tokens = DEMO.tokenize(text)
    assert DEMO.detokenize(tokens) == "user\nA"
    assert DEMO.detokenize(tokens, special=True) == text
    assert b"".join(DEMO.token_bytes(token, special=True) for token in tokens) == text.encode()


def test_answer_tags_become_text_even_if_they_are_control_tokens(tmp_path: Path, demo: Path) -> None:
    marks = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    fields = open_gguf(demo).fields
    names, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    tokens = [names.index(mark) for mark in marks]
    for token in tokens:
        assert kinds[token] == TokenType.USER_DEFINED
        kinds[token] = int(TokenType.CONTROL)
    rewrite(demo, tmp_path / "m.gguf", metadata={"tokenizer.ggml.token_type": kinds})
    model = Model(tmp_path / "m.gguf", vocab_only=True)
    assert model.tokenize("".join(marks)) == tokens
    assert [model.token_bytes(token).decode() for token in tokens] == marks
    assert model.token_bytes(names.index("<|fim_pad|>")) == b""


def test_token_bytes_may_split_a_character() -> None:
    tokens = DEMO.tokenize("🐍")
    assert len(tokens) > 1
    assert b"".join(map(DEMO.token_bytes, tokens)) == "🐍".encode()


@pytest.mark.parametrize("token", [-1, DEMO.n_vocab, 10**12])
def test_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"outside the vocabulary of {DEMO.n_vocab}"):
        DEMO.token_bytes(token)


def test_tokenize_refuses_invalid_unicode() -> None:
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        DEMO.tokenize("\ud800")


def test_metadata_matches_the_file(demo: Path) -> None:
    reader = open_gguf(demo)
    (embeddings,) = (tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    assert DEMO.architecture == DEMO.metadata["general.architecture"] == "qwen35"
    assert DEMO.metadata["general.name"] == "pymtp demo"
    assert DEMO.has_head
    assert DEMO.n_layer == reader.fields["qwen35.block_count"].contents() - 1  # without the head's block
    assert [DEMO.n_embd, DEMO.n_vocab] == list(embeddings.shape)
    assert DEMO.weight_type == embeddings.tensor_type.name.lower()
    assert "<|im_start|>" in str(DEMO.chat_template)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file"):
        Model(tmp_path / "none.gguf")


def test_hub_name_given_as_a_path_is_refused_with_advice() -> None:
    with pytest.raises(ModelLoadError, match=r"no such file: hf:owner/name; .*from_pretrained"):
        Model("hf:owner/name")


def test_empty_path_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="path is empty"):
        Model("")


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"PK\x03\x04 not a model" * 100, bytes(4096)], ids=["empty", "magic only", "zip", "zeros"]
)
def test_file_that_is_not_a_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="not a readable GGUF"):
        Model(path)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_truncated_file_is_refused_at_any_length(tmp_path: Path, demo: Path, share: float) -> None:
    data = demo.read_bytes()
    path = tmp_path / "model.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelLoadError, match="cut off at" if share >= 0.1 else "not a readable GGUF"):
        Model(path)


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"general.architecture": "llama"}, "architecture is 'llama'"),
        ({"qwen35.block_count": 0}, "block_count"),
        ({"qwen35.block_count": 99}, "recurrent_layers must say of each of the 99 blocks"),
        ({"qwen35.nextn_predict_layers": 9}, "heads of one block"),
        ({"qwen35.nextn_predict_layers": 2}, "heads of one block"),
        ({"qwen35.embedding_length": 0}, "embedding_length"),
        ({"qwen35.embedding_length": 191}, "cannot load"),
        ({"qwen35.ssm.state_size": 0}, "ssm.state_size"),
        ({"qwen35.ssm.group_count": None}, "ssm.group_count"),
        ({"qwen35.attention.head_count": 0}, "attention.head_count"),
        ({"qwen35.nextn_tap": "sideways"}, "nextn_tap is 'sideways'"),
        ({"tokenizer.ggml.model": "none of the known"}, "tokenizer.ggml.model is 'none of the known'"),
    ],
    ids=str,
)
def test_file_with_impossible_metadata_is_refused(
    tmp_path: Path, demo: Path, metadata: dict[str, object], why: str
) -> None:
    path = tmp_path / "model.gguf"
    rewrite(demo, path, metadata=metadata)
    with pytest.raises(ModelLoadError, match=why):
        Model(path)


@pytest.mark.parametrize("same_size_and_time", [False, True])
def test_file_replaced_during_the_load_is_refused(
    demo: Path, headless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_size_and_time: bool
) -> None:
    """Otherwise, saved prefixes of the new file would be marked as prefixes of the old file."""
    current, other = tmp_path / "current.gguf", tmp_path / "other.gguf"
    current.symlink_to(demo)
    weights = bytearray(demo.read_bytes())
    weights[-4096:] = bytes(4096)
    other.write_bytes(weights)
    os.utime(other, ns=(0, demo.stat().st_mtime_ns))

    def first(path: Path) -> str:
        digest = file_digest(path)
        current.unlink()
        current.symlink_to(other if same_size_and_time else headless)
        monkeypatch.undo()
        return digest

    monkeypatch.setattr("pymtp.model.model.file_digest", first)
    with pytest.raises(ModelLoadError, match="the file was replaced while it was loaded"):
        Model(current)


def test_file_without_a_head_loads(headless: Path) -> None:
    with Model(headless) as model:
        assert not model.has_head
        assert model.n_layer == 8


def test_closed_model_raises_closed_error() -> None:
    model = Model(vocab_only=True)
    model.close()
    model.close()
    with pytest.raises(ClosedError):
        model.tokenize("a")
    with pytest.raises(ClosedError):
        model.ends_generation(1)


@pytest.mark.parametrize("layers", ["a", 1.5, -2, 10**20])
def test_invalid_n_gpu_layers_is_refused(layers: Any) -> None:
    with pytest.raises(InvalidRequestError, match="n_gpu_layers"):
        Model(n_gpu_layers=layers)


def test_no_n_gpu_layers_means_all() -> None:
    with Model(n_gpu_layers=None, vocab_only=True) as model:
        assert model.options.n_gpu_layers == -1


@pytest.mark.parametrize("path", [5, b"/model.gguf", 1.5])
def test_model_refuses_a_value_that_is_not_a_path(path: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"not {type(path).__name__}"):
        Model(path)


@pytest.mark.parametrize("special", ["folder", "pipe"])
def test_model_refuses_a_folder_and_a_pipe(special: str, tmp_path: Path) -> None:
    path = tmp_path / special
    if special == "folder":
        path.mkdir()
    elif hasattr(os, "mkfifo"):
        os.mkfifo(path)
    else:
        pytest.skip("this system has no named pipes")
    with pytest.raises(ModelLoadError, match=f"not a file: .*{special}"):
        Model(path)


def test_tokenize_splits_at_any_number_of_special_tokens() -> None:
    tokenize = DEMO.tokenize
    for part in ("<|im_start|>user\nab<|im_end|>\n", "<|im_end|>", "a<|im_end|><|im_start|>", "<|im_start|> b"):
        for n in (2, 3, 500):
            assert tokenize(part * n) == tokenize(part) * n
    both = "a<|im_start|>b<|im_end|>c"  # the tokenizer searches for the special tokens one after the other
    assert [DEMO.token_text(token) for token in tokenize(both)] == ["a", "<|im_start|>", "b", "<|im_end|>", "c"]
