"""Tests of head files that do not fit their model: each is refused with an error that gives the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command import run
from makers.gguf_read import open_gguf
from makers.gguf_variants import rewrite
from makers.head_file import read_tensor, write_head, write_pair
from makers.make_model import make_model
from makers.model_shapes import PRESETS

from pymtp import LLM, InvalidRequestError, Model, ModelLoadError


@pytest.fixture(scope="module")
def pair(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write the shipped model's trunk and head to two files."""
    return write_pair(demo, tmp_path_factory.mktemp("pair"))


def refused(model: Path, head: Path, *words: str) -> None:
    """Check that a head is refused, with and without loading weights, by an error with the head's path and `words`."""
    for options in ({}, {"vocab_only": True}):
        with pytest.raises(ModelLoadError) as error:
            Model(model, head=head, **options)
        for word in (str(head), *words):
            assert word in str(error.value)


KEYS = [
    ("embedding_length", 512, "256"),
    ("attention.head_count", 2, "4"),
    ("attention.head_count_kv", 1, "2"),
    ("attention.key_length", 32, "64"),
    ("rope.dimension_count", 16, "32"),
    ("rope.freq_base", 5e5, "1e+07"),
    ("attention.layer_norm_rms_epsilon", 1e-5, "1e-06"),
    ("feed_forward_length", 1024, "768"),
]


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, value, _ in KEYS])
def test_head_of_another_shape_is_refused_with_both_numbers(
    demo: Path, pair: tuple[Path, Path], key: str, value: float, tmp_path: Path
) -> None:
    name = f"qwen35.{key}"
    own = open_gguf(demo).fields[name].contents()
    number = own[0] if isinstance(own, list) else own
    other = value if value != number else 2 * value
    write_head(
        demo, head := tmp_path / "mtp.gguf", metadata={name: [other] * len(own) if isinstance(own, list) else other}
    )
    refused(pair[0], head, name, f"{other:g}", f"{number:g}")


def test_head_with_another_vocabulary_is_refused_with_both_numbers(
    demo: Path, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    fields = open_gguf(demo).fields
    tokens, types = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    fewer = {"tokenizer.ggml.tokens": tokens[:-64], "tokenizer.ggml.token_type": types[:-64]}
    write_head(demo, head := tmp_path / "fewer.gguf", metadata=fewer)
    refused(pair[0], head, str(len(tokens)), str(len(tokens) - 64))
    turned = [tokens[0], *tokens[:0:-1]]
    write_head(demo, head := tmp_path / "turned.gguf", metadata={"tokenizer.ggml.tokens": turned})
    refused(pair[0], head, "tokens are others than the model's")
    write_head(demo, head := tmp_path / "pre.gguf", metadata={"tokenizer.ggml.pre": "llama-bpe"})
    refused(pair[0], head, "tokenizer.ggml.pre", "llama-bpe")


def test_head_with_a_few_renamed_tokens_is_accepted(demo: Path, pair: tuple[Path, Path], tmp_path: Path) -> None:
    tokens = list(open_gguf(demo).fields["tokenizer.ggml.tokens"].contents())
    tokens[-1] = "<|PAD_TOKEN|>"
    write_head(demo, head := tmp_path / "mtp.gguf", metadata={"tokenizer.ggml.tokens": tokens})
    Model(pair[0], head=head).close()


def test_head_of_another_architecture_or_number_of_blocks_is_refused_with_both_values(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    (moe,) = make_model("tiny-moe", tmp_path / "moe.gguf")
    _, head = write_pair(moe, tmp_path)
    refused(pair[0], head, "'qwen35moe'", "'qwen35'")
    (tiny,) = make_model("tiny", tmp_path / "tiny.gguf")
    _, head = write_pair(tiny, tmp_path)
    refused(pair[0], head, f"block {PRESETS['tiny'].n_layer}", "8 blocks")


def test_file_that_is_not_a_usable_head_is_refused_with_the_reason(
    demo: Path, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    trunk, _ = pair
    refused(trunk, trunk, "no head in the file", "nextn.eh_proj")
    torch = {"blk.8.nextn.eh_proj.weight": "mtp.fc.weight"}
    write_head(demo, renamed := tmp_path / "renamed.gguf", rename=torch)
    refused(trunk, renamed, "mtp.fc.weight")
    rows = read_tensor(demo, "token_embd.weight")[:128]
    write_head(demo, fewer := tmp_path / "fast.gguf", tensors={"output.weight": rows})
    refused(trunk, fewer, "128 of")
    tensors = {"output.weight": rows, "d2t": np.arange(128, dtype=np.int64)}
    write_head(demo, mapped := tmp_path / "mapped.gguf", tensors=tensors)
    refused(trunk, mapped, "128 of", "which the tensor d2t names")
    write_head(demo, lacks := tmp_path / "lacks.gguf", tensors={"blk.8.attn_k.weight": None})
    with pytest.raises(ModelLoadError, match="attn_k"):
        Model(trunk, head=lacks)
    with pytest.raises(ModelLoadError, match="no such head"):
        Model(trunk, head=tmp_path / "none.gguf")
    with pytest.raises(ModelLoadError, match="no such head"):
        LLM.from_pretrained("owner/name", head=tmp_path / "none.gguf")  # raised before any request to the hub
    with pytest.raises(ModelLoadError, match=r"no such head: hf:o/n:Q8_0; .* together with its model: hf:.*\+Q8_0"):
        Model(trunk, head="hf:o/n:Q8_0")
    (text := tmp_path / "text.gguf").write_text("no GGUF at all")
    refused(trunk, text, "not a readable GGUF file")
    for name, content in (("empty.gguf", b""), ("noise.gguf", np.random.default_rng(0).bytes(5000))):
        (tmp_path / name).write_bytes(content)
        refused(trunk, tmp_path / name, "not a readable GGUF file")
    with pytest.raises(ModelLoadError):
        Model(trunk, head=tmp_path)
    for wrong in ("", 5, "a\0b", ["a"]):
        with pytest.raises(InvalidRequestError, match="head"):
            Model(trunk, head=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("inside", [False, True])
def test_unknown_tensor_of_a_head_is_named_in_the_error(
    demo: Path, pair: tuple[Path, Path], inside: bool, tmp_path: Path
) -> None:
    more = {"blk.8.nextn.gate.weight": np.zeros(32, "f4")}
    path = tmp_path / "more.gguf"
    if inside:
        rewrite(demo, path, more=more)
    else:
        write_head(demo, path, tensors=more)
    with pytest.raises(ModelLoadError, match=r"'blk\.8\.nextn\.gate\.weight' is like none of the model's"):
        Model(path) if inside else Model(pair[0], head=path)


def test_head_file_given_as_the_model_is_refused_with_advice(pair: tuple[Path, Path]) -> None:
    with pytest.raises(ModelLoadError, match=r"this file is a head and no model: give the model's file, .*--head"):
        Model(pair[1])
    done = run("generate", "a", "--model", pair[1])
    assert done.returncode != 0
    assert "--head" in done.stderr


@pytest.mark.parametrize("missing", [1, 4096, 100_000])
def test_truncated_head_file_is_refused(pair: tuple[Path, Path], tmp_path: Path, missing: int) -> None:
    head = tmp_path / "cut.gguf"
    head.write_bytes(pair[1].read_bytes()[:-missing])
    refused(pair[0], head, "cut off" if missing < 100_000 else "")


def test_head_file_replaced_during_the_load_is_refused(
    demo: Path, pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = tmp_path / "mtp.gguf"
    head.write_bytes(pair[1].read_bytes())
    other = tmp_path / "other.gguf"
    write_head(demo, other, metadata={"general.name": "another"})
    import pymtp.model.model as module

    look: Callable[..., Any] = module.read_file_info

    def replace(*paths: Any) -> Any:
        found = look(*paths)
        other.replace(head)
        return found

    monkeypatch.setattr(module, "read_file_info", replace)
    with pytest.raises(ModelLoadError, match=r"mtp\.gguf: the file was replaced"):
        Model(pair[0], head=head)
