"""Tests of damaged model files: each loads, or is refused with an error that names its fault; none ends the process."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fuzz_models import Fuzzed
from gguf import GGMLQuantizationType, GGUFValueType
from makers.gguf_parts import GGUF, Key, TensorInfo, tensor_bytes

from pymtp import LLM, Model, ModelLoadError, SamplingParams

U16, U32, F32 = int(GGUFValueType.UINT16), int(GGUFValueType.UINT32), int(GGUFValueType.FLOAT32)
Change = Callable[[GGUF], object]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[GGUF]:
    """Make valid small models: with a head, without, with experts, with wide rows, and a qwen3next."""
    return Fuzzed(tmp_path_factory.mktemp("sound")).bases


@pytest.fixture
def load(bases: list[GGUF], tmp_path: Path) -> Callable[[Change, int], None]:
    """Return a function that changes a valid model and generates two tokens with it."""

    def load_changed(change: Change, base: int = 0) -> None:
        file = bases[base].copy()
        change(file)
        path = tmp_path / "model.gguf"
        path.write_bytes(file.encoded())
        with LLM(path, n_ctx=64, n_threads=1, draft_tokens=1) as llm:
            llm.generate("ab", SamplingParams(max_tokens=2))

    return load_changed


def key(file: GGUF, name: str) -> Key:
    return next(key for key in file.keys if key.name.split(b".", 1)[1] == name.encode())


def tensor(file: GGUF, name: str) -> TensorInfo:
    return next(tensor for tensor in file.tensors if tensor.name == name.encode())


def number(name: str, *values: int) -> Change:
    """Set a key of the architecture to a number, or to an array of numbers."""

    def change(file: GGUF) -> None:
        drop(name)(file)
        encoded = [value.to_bytes(4, "little") for value in values]
        file.keys.append(Key(file.keys[0].values[0] + b"." + name.encode(), U32, encoded, is_array=len(values) > 1))

    return change


def real(name: str, value: float) -> Change:
    return lambda file: key(file, name).values.__setitem__(0, struct.pack("<f", value))


def drop(name: str) -> Change:
    def change(file: GGUF) -> None:
        file.keys = [key for key in file.keys if key.name.split(b".", 1)[1] != name.encode()]

    return change


def interval(n: int) -> Change:
    """Mark recurrent blocks by their interval instead of a list."""
    return lambda file: (drop("attention.recurrent_layers")(file), number("full_attention_interval", n)(file))


def drop_tensor(name: str) -> Change:
    return lambda file: file.tensors.remove(tensor(file, name))


def retype(name: str, kind: GGMLQuantizationType) -> Change:
    def change(file: GGUF) -> None:
        changed = tensor(file, name)
        changed.kind = int(kind)
        changed.data = bytes(tensor_bytes(changed.shape, changed.kind))

    return change


def empty(name: str) -> Change:
    def change(file: GGUF) -> None:
        tensor(file, name).shape[0], tensor(file, name).data = 0, b""

    return change


def token(i: int, text: bytes) -> Change:
    return lambda file: key(file, "ggml.tokens").values.__setitem__(i, text)


def add(name: bytes, kind: int, value: bytes) -> Change:
    return lambda file: file.keys.append(Key(name, kind, [value]))


def last_is_recurrent(file: GGUF) -> None:
    key(file, "attention.recurrent_layers").values[-1] = b"\1"


def sections(*values: int) -> Change:
    encoded = [struct.pack("<i", value) for value in values]
    return lambda file: key(file, "rope.dimension_sections").values.__setitem__(slice(None), encoded)


def joined(file: GGUF) -> None:
    """Replace two matrices by one, as early files of qwen3next have it.

    The rows of the joined matrix are in the right order only for a model with one key head.
    """
    for i in range(3):
        qkv, gate = (tensor(file, f"blk.{i}.attn_{name}.weight") for name in ("qkv", "gate"))
        shape = [qkv.shape[0], qkv.shape[1] + gate.shape[1]]
        file.tensors.append(
            replace(qkv, name=f"blk.{i}.ssm_in.weight".encode(), shape=shape, data=qkv.data + gate.data)
        )
        file.tensors.remove(qkv)
        file.tensors.remove(gate)


NO_TYPE = "which is no type for weights"
REFUSED: dict[str, tuple[Change, int, str]] = {
    # without pymtp's checks, the first file ends the process in llama.cpp, and the next two divide by zero there
    "a token twice": (
        token(7, b"a"),
        0,
        "tokens 7 and 64 of tokenizer.ggml.tokens are both 'a', each must be there once",
    ),
    "interval 0": (interval(0), 0, "full_attention_interval is 0, it must be 1 to"),
    "no experts": (number("expert_count", 0), 2, "expert_count is 0, it must be 1 to 1024"),
    "a token named as an empty one": (
        lambda file: (token(7, b"")(file), token(8, b"[EMPTY_7]")(file)),
        0,
        r"tokens 7 and 8 .* are both '\[EMPTY_7\]'",
    ),
    "no tokens": (lambda file: key(file, "ggml.tokens").values.clear(), 0, "must be an array of strings"),
    "another tokenizer": (
        lambda file: key(file, "ggml.model").values.__setitem__(0, b"llama"),
        0,
        "tokenizer.ggml.model is 'llama', pymtp's models have gpt2",
    ),
    "too many blocks": (number("block_count", 513), 0, "block_count is 513, it must be 1 to 512"),
    "a key of another type": (
        lambda file: setattr(key(file, "block_count"), "kind", F32),
        0,
        "qwen35.block_count is of type f32, it must be u32",
    ),
    "a recurrent head": (last_is_recurrent, 0, "block 4, the head, is recurrent; a head has attention"),
    "no attention": (interval(9), 0, "of 4 blocks 4 are recurrent"),
    "no recurrence": (interval(1), 0, "of 4 blocks 0 are recurrent"),
    "heads that differ": (number("attention.head_count", 2, 2, 2, 1, 2), 0, "the same for all blocks, block 3 differs"),
    "too few heads": (number("attention.head_count", 2, 2), 0, "one number, or 5 of 32 bits"),
    "more kv heads": (number("attention.head_count_kv", 3), 0, "head_count_kv is 3, it must be 1 to 2"),
    "unequal heads": (number("attention.value_length", 16), 0, "key_length is 32 and attention.value_length 16"),
    "odd rotation": (number("rope.dimension_count", 15), 0, "dimension_count is 15, it must be even"),
    "rotation beyond the head": (number("rope.dimension_count", 34), 0, "is 34, it must be 2 to 32"),
    "no sections": (sections(0, 0, 0, 0), 0, "add up to 0"),
    "negative sections": (sections(-1, 3, 2, 0), 0, "must not be negative"),
    "large sections": (sections(2**30, 2**30, 2**30, 2**30), 0, "add up to 4294967296"),
    "inner size": (number("ssm.inner_size", 32), 0, "inner_size is 32, it must be .* = 64"),
    "groups": (number("ssm.group_count", 3), 0, "time_step_rank is 2, it must be a multiple of ssm.group_count = 3"),
    "more experts used": (number("expert_used_count", 5), 2, "expert_used_count is 5, it must be 1 to 4"),
    "epsilon": (real("attention.layer_norm_rms_epsilon", -1), 0, "layer_norm_rms_epsilon must be"),
    "not a number": (real("rope.freq_base", math.nan), 0, "qwen35.rope.freq_base is not a finite number"),
    "not causal": (
        add(b"qwen35.attention.causal", int(GGUFValueType.BOOL), b"\0"),
        0,
        "attention.causal is false, it must be true",
    ),
    "pooling": (number("pooling_type", 9), 0, "pooling_type is 9, it must be 0"),
    "other output": (number("embedding_length_out", 64), 0, "embedding_length_out is 64, it must be 32"),
    "unknown scaling": (
        add(b"qwen35.rope.scaling.type", int(GGUFValueType.STRING), b"round"),
        0,
        "rope.scaling.type is 'round', llama.cpp knows",
    ),
    # tensors that llama.cpp treats as optional when it loads them, but needs later
    "no qkv": (drop_tensor("blk.1.attn_qkv.weight"), 0, "tensor 'blk.1.attn_qkv.weight' is missing"),
    "no gate": (drop_tensor("blk.1.attn_gate.weight"), 0, "tensor 'blk.1.attn_gate.weight' is missing"),
    "no first norm": (drop_tensor("blk.0.attn_norm.weight"), 0, "tensor 'blk.0.attn_norm.weight' is missing"),
    "an empty tensor": (empty("blk.1.ffn_up.weight"), 0, "tensor 'blk.1.ffn_up.weight' is empty"),
    # faults of a qwen3next
    "no experts in a qwen3next": (number("expert_count", 0), 4, "expert_count is 0, it must be 1 to 1024"),
    "no beta and alpha": (drop_tensor("blk.1.ssm_ba.weight"), 4, "blk.1.ssm_ba.weight"),
    "no qkv in a qwen3next": (drop_tensor("blk.1.attn_qkv.weight"), 4, "tensor 'blk.1.attn_qkv.weight' is missing"),
    "no gate in a qwen3next": (drop_tensor("blk.1.attn_gate.weight"), 4, "tensor 'blk.1.attn_gate.weight' is missing"),
    "a qwen35 like early qwen3next": (joined, 0, "tensor 'blk.0.attn_qkv.weight' is missing"),
    # types of weights that no operation can compute with
    "integers": (retype("blk.0.ffn_up.weight", GGMLQuantizationType.I32), 0, f"is of type i32, {NO_TYPE}"),
    "doubles": (retype("blk.0.ffn_up.weight", GGMLQuantizationType.F64), 0, f"is of type f64, {NO_TYPE}"),
    "activations": (retype("blk.0.ffn_up.weight", GGMLQuantizationType.Q8_1), 0, f"is of type q8_1, {NO_TYPE}"),
    "a quantized norm": (retype("output_norm.weight", GGMLQuantizationType.F16), 0, "is of type f16, it must be f32"),
    "a quantized kernel": (
        retype("blk.0.ssm_a", GGMLQuantizationType.F16),
        0,
        "tensor 'blk.0.ssm_a' is of type f16, it must be f32",
    ),
    "a part": (add(b"split.count", U16, b"\2\0"), 0, "this is part 1 of 2, and its name must end like -00001-of-00002"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_damaged_file_is_refused_with_an_error_that_names_the_fault(
    load: Callable[[Change, int], None], name: str
) -> None:
    change, base, why = REFUSED[name]
    with pytest.raises(ModelLoadError, match=why):
        load(change, base)


WORKING: dict[str, tuple[Change, int]] = {
    "as it is": (lambda file: None, 0),
    "a number for each block": (number("attention.head_count_kv", 1, 1, 1, 1, 1), 0),
    "recurrent layers by their interval": (drop("attention.recurrent_layers"), 0),
    "no file type": (drop("file_type"), 0),
    "empty tokens": (lambda file: (token(7, b"")(file), token(8, b"")(file)), 0),
    "a matrix of bf16": (retype("blk.0.ffn_up.weight", GGMLQuantizationType.BF16), 0),
    "a qwen3next": (lambda file: None, 4),
    "a qwen3next as first published": (lambda file: (joined(file), drop("attention.recurrent_layers")(file)), 4),
}


@pytest.mark.parametrize("name", WORKING)
def test_unusual_valid_file_loads(load: Callable[[Change, int], None], name: str) -> None:
    load(*WORKING[name])


def test_missing_or_wrong_part_of_a_split_model_is_named_in_the_error(bases: list[GGUF], tmp_path: Path) -> None:
    file = bases[0].copy()
    add(b"split.count", U16, b"\2\0")(file)
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(file.encoded())
    with pytest.raises(ModelLoadError, match=r"part 2 of 2, .*model-00002-of-00002.gguf: not a readable GGUF"):
        Model(path)
    (tmp_path / "model-00002-of-00002.gguf").write_bytes(bases[0].encoded())
    with pytest.raises(ModelLoadError, match=r"part 2 of 2, .*: its split.no must be 1"):
        Model(path)
