"""Damages GGUF files for fuzz_files.py.

A file is damaged in its structure (keys, types, counts, shapes, with or without correct offsets after them), or at
random bytes. The same seed makes the same damage.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

from gguf import GGUFValueType
from makers.gguf_parts import ARRAY, GGUF, QUANTS, SCALARS, SIZES, STRING, Key, TensorInfo, tensor_bytes

_INTEGERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 127, 128, 255, 256, 257, 512, 513, 1024, 1025, 4096, 2**16 - 1)
_LARGE = tuple(2**n + d for n in (16, 20, 24, 30, 31, 32, 33, 40, 62, 63) for d in (-1, 0, 1))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-6, -1e-6, 1e38, -1e38, math.inf, -math.inf, math.nan, 0.5, 2.0, 1e4)


def _integer(rng: Random, old: int) -> int:
    near = (old + 1, old - 1, old * 2, old // 2, -old, old ^ 1 << rng.randrange(32))
    return rng.choice(
        (rng.choice(_INTEGERS), rng.choice(_INTEGERS), rng.choice(_LARGE), rng.choice(near), rng.choice(near))
    )


def _damaged_value(rng: Random, kind: int, old: bytes) -> bytes:
    if kind == STRING:
        return _damaged_string(rng, old)
    if kind not in SIZES:
        return old
    code = "<" + SCALARS[GGUFValueType(kind)]
    if code in ("<f", "<d"):
        (number,) = struct.unpack(code, old)
        return struct.pack(code, rng.choice((*_FLOATS, number * 2, number / 2, -number)))
    value = _integer(rng, int.from_bytes(old, "little")) & 2 ** (8 * len(old)) - 1
    return value.to_bytes(len(old), "little")


def _damaged_string(rng: Random, old: bytes) -> bytes:
    match rng.randrange(8):
        case 0:
            return b""
        case 1:
            return old + bytes([rng.randrange(256)])
        case 2:
            return old[:-1]
        case 3:
            return b"\xff\xfe" + old
        case 4:
            return old[: len(old) // 2] + b"\0" + old[len(old) // 2 :]
        case 5:
            return rng.choice(
                (b"llama", b"bert", b"t5", b"rwkv", b"none", b"test", b"plamo2", b"gemma4", b"qwen2", b"gpt2")
            )
        case 6:
            return rng.randbytes(rng.choice((1, 3, 40, 5000)))
    return _flipped(rng, old, 1)


def _flipped(rng: Random, data: bytes, n: int, start: int = 0, stop: int | None = None) -> bytes:
    changed = bytearray(data)
    stop = len(data) if stop is None else min(stop, len(data))
    for _ in range(n if stop > start else 0):
        at = rng.randrange(start, stop)
        changed[at] = rng.choice((changed[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
    return bytes(changed)


def _change_value(rng: Random, file: GGUF) -> str:
    key = rng.choice(file.keys)
    # llama.cpp also accepts one number for all blocks
    at = rng.sample(range(len(key.values)), min(len(key.values), rng.choice((1, 1, 1, 2, 5))))
    for i in at:
        key.values[i] = _damaged_value(rng, key.kind, key.values[i])
    return f"value of {key.name!r} at {at}"


def _change_number(rng: Random, file: GGUF) -> str:
    """Change a number of the architecture, which decides on shapes."""
    numbers = [key for key in file.keys if not key.is_array and key.name.startswith(b"qwen")]
    key = rng.choice(numbers)
    key.values[0] = _damaged_value(rng, key.kind, key.values[0])
    return f"number {key.name!r}"


def _change_type(rng: Random, file: GGUF) -> str:
    key = rng.choice(file.keys)
    key.kind = rng.choice((*SIZES, STRING, ARRAY, 13, 2**31, 2**32 - 1))
    if rng.random() < 0.7 and key.kind in SIZES:
        size = SIZES[key.kind]
        key.values = [value[:size].ljust(size, b"\0") for value in key.values]
    return f"type of {key.name!r} to {key.kind}"


def _change_length(rng: Random, file: GGUF) -> str:
    arrays = [key for key in file.keys if key.is_array]
    key = rng.choice(arrays)
    match rng.randrange(6):
        case 0:
            key.counted = _integer(rng, len(key.values)) & 2**64 - 1
        case 1:
            key.values = key.values[: rng.randrange(len(key.values) + 1)]
        case 2:
            key.values = key.values + rng.choices(key.values, k=rng.choice((1, 2, 30)))
        case 3:
            key.values = []
        case 4:
            key.is_array, key.values = False, key.values[:1]
        case 5:
            del key.values[rng.randrange(len(key.values))]
    return f"length of {key.name!r}"


def _swap_elements(rng: Random, file: GGUF) -> str:
    arrays = [key for key in file.keys if key.is_array and len(key.values) > 1]
    key = rng.choice(arrays)
    i, j = rng.sample(range(len(key.values)), 2)
    if rng.random() < 0.5:
        key.values[i] = key.values[j]
        return f"{key.name!r}: {j} stands at {i}, too"
    key.values[i], key.values[j] = key.values[j], key.values[i]
    return f"{key.name!r}: {i} and {j} swapped"


def _make_array(rng: Random, file: GGUF) -> str:
    key = rng.choice([key for key in file.keys if not key.is_array])
    key.is_array, key.values = True, key.values * rng.choice((0, 1, 4, 5, 5, 5, 6, 513))
    return f"{key.name!r} is an array of {len(key.values)}"


def _drop_key(rng: Random, file: GGUF) -> str:
    return f"without {file.keys.pop(rng.randrange(len(file.keys))).name!r}"


def _double_key(rng: Random, file: GGUF) -> str:
    key = rng.choice(file.keys)
    file.keys.insert(rng.randrange(len(file.keys) + 1), replace(key))
    return f"{key.name!r} twice"


def _rename_key(rng: Random, file: GGUF) -> str:
    key = rng.choice(file.keys)
    key.name = rng.choice((_flipped(rng, key.name, 1), b"", rng.choice(file.keys).name))
    return f"a key becomes {key.name!r}"


def _swap_values(rng: Random, file: GGUF) -> str:
    one, two = rng.sample(file.keys, 2)
    one.kind, two.kind = two.kind, one.kind
    one.values, two.values = two.values, one.values
    one.is_array, two.is_array = two.is_array, one.is_array
    return f"{one.name!r} and {two.name!r} swapped"


# what llama.cpp reads of any architecture, and these models do not have
_FOREIGN = (
    (b"embedding_length_out", GGUFValueType.UINT32),
    (b"pooling_type", GGUFValueType.UINT32),
    (b"attention.causal", GGUFValueType.BOOL),
    (b"expert_count", GGUFValueType.UINT32),
    (b"expert_used_count", GGUFValueType.UINT32),
    (b"expert_group_count", GGUFValueType.UINT32),
    (b"expert_group_used_count", GGUFValueType.UINT32),
    (b"rope.scaling.type", GGUFValueType.STRING),
    (b"rope.scaling.factor", GGUFValueType.FLOAT32),
    (b"rope.scaling.original_context_length", GGUFValueType.UINT32),
    (b"rope.scaling.attn_factor", GGUFValueType.FLOAT32),
    (b"attention.key_length_swa", GGUFValueType.UINT32),
    (b"rope.dimension_count_swa", GGUFValueType.UINT32),
    (b"classifier.output_labels", GGUFValueType.STRING),
    (b"vocab_size", GGUFValueType.UINT32),
)
_GENERAL = (
    (b"general.alignment", GGUFValueType.UINT32),
    (b"split.count", GGUFValueType.UINT16),
    (b"split.no", GGUFValueType.UINT16),
    (b"split.tensors.count", GGUFValueType.INT32),
    (b"tokenizer.ggml.add_eos_token", GGUFValueType.BOOL),
    (b"tokenizer.ggml.eot_token_id", GGUFValueType.UINT32),
    (b"tokenizer.ggml.scores", GGUFValueType.FLOAT32),
    (b"tokenizer.ggml.token_type_count", GGUFValueType.UINT32),
    (b"tokenizer.ggml.suppress_tokens", GGUFValueType.INT32),
    (b"tokenizer.ggml.precompiled_charsmap", GGUFValueType.INT8),
)


def _add_key(rng: Random, file: GGUF) -> str:
    if rng.random() < 0.5:
        name, kind = rng.choice(_GENERAL)
    else:
        name, kind = rng.choice(_FOREIGN)
        name = file.keys[0].values[0] + b"." + name
    old = b"linear" if kind == GGUFValueType.STRING else bytes(SIZES[int(kind)])
    n = rng.choice((None, None, None, 0, 1, 5))
    values = [_damaged_value(rng, int(kind), old) for _ in range(1 if n is None else n)]
    file.keys.append(Key(name, int(kind), values, is_array=n is not None))
    return f"{name!r} added: {values[:1]}"


def _drop_tensor(rng: Random, file: GGUF) -> str:
    return f"without tensor {file.tensors.pop(rng.randrange(len(file.tensors))).name!r}"


def _double_tensor(rng: Random, file: GGUF) -> str:
    tensor = replace(rng.choice(file.tensors))
    tensor.name = rng.choice(
        (tensor.name, tensor.name.replace(b"weight", b"bias"), tensor.name.replace(b"weight", b"scale"))
    )
    file.tensors.insert(rng.randrange(len(file.tensors) + 1), tensor)
    return f"tensor {tensor.name!r} once more"


def _rename_tensor(rng: Random, file: GGUF) -> str:
    tensor = rng.choice(file.tensors)
    tensor.name = rng.choice(
        (_flipped(rng, tensor.name, 1), b"", tensor.name * 4, b"output.weight", b"blk.0.attn_q.weight")
    )
    return f"a tensor becomes {tensor.name!r}"


def _swap_tensors(rng: Random, file: GGUF) -> str:
    one, two = rng.sample(file.tensors, 2)
    one.name, two.name = two.name, one.name
    return f"tensors {one.name!r} and {two.name!r} swapped"


def _change_shape(rng: Random, file: GGUF) -> str:
    tensor = rng.choice(file.tensors)
    match rng.randrange(5):
        case 0:
            tensor.n_dims = _integer(rng, len(tensor.shape)) & 2**32 - 1
        case 1:
            tensor.shape = [*tensor.shape, rng.choice((0, 1, 2))]
        case 2:
            tensor.shape.reverse()
        case _:
            at = rng.randrange(len(tensor.shape))
            tensor.shape[at] = _signed(_integer(rng, tensor.shape[at]))
    return f"shape of {tensor.name!r}: {tensor.shape}"


def _resize(rng: Random, file: GGUF) -> str:
    """Change the shape of a tensor and its data: only the check of the model can find it."""
    tensor = rng.choice(file.tensors)
    at = rng.randrange(len(tensor.shape))
    tensor.shape[at] = rng.choice((0, 1, 2, tensor.shape[at] + 32, tensor.shape[at] * 2, max(1, tensor.shape[at] // 2)))
    return _refill(rng, tensor)


def _retype(rng: Random, file: GGUF) -> str:
    """Change the type of a tensor and its data."""
    tensor = rng.choice(file.tensors)
    tensor.kind = rng.choice((*QUANTS, *QUANTS, 4, 5, 31, 42, 43, 99))
    return _refill(rng, tensor)


def _retype_alike(rng: Random, file: GGUF) -> str:
    """Change the type of all tensors with one name in their blocks."""
    end = rng.choice(file.tensors).name.rsplit(b".", 2)[-2:]
    kind = rng.choice(tuple(QUANTS))
    alike = [tensor for tensor in file.tensors if tensor.name.rsplit(b".", 2)[-2:] == end]
    for tensor in alike:
        tensor.kind = kind
    return "; ".join([_refill(rng, tensor) for tensor in alike][:1])


def _refill(rng: Random, tensor: TensorInfo) -> str:
    n = tensor_bytes(tensor.shape, tensor.kind)
    tensor.data = (tensor.data * (n // max(1, len(tensor.data)) + 1))[:n] if rng.random() < 0.5 else rng.randbytes(n)
    return f"{tensor.name!r} is {tensor.shape} of type {tensor.kind}"


def _change_kind(rng: Random, file: GGUF) -> str:
    tensor = rng.choice(file.tensors)
    tensor.kind = rng.choice((rng.randrange(64), _integer(rng, tensor.kind)))
    return f"type of {tensor.name!r}: {tensor.kind}"


def _change_offset(rng: Random, file: GGUF) -> str:
    tensor = rng.choice(file.tensors)
    tensor.offset = _integer(rng, rng.choice((0, 32, 4096))) & 2**64 - 1
    return f"offset of {tensor.name!r}: {tensor.offset}"


def _change_data(rng: Random, file: GGUF) -> str:
    tensor = rng.choice(file.tensors)
    pattern = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0", rng.randbytes(64)))
    tensor.data = (pattern * (len(tensor.data) // len(pattern) + 1))[: len(tensor.data)]
    return f"data of {tensor.name!r}"


def _change_counts(rng: Random, file: GGUF) -> str:
    match rng.randrange(4):
        case 0:
            file.n_keys = _integer(rng, len(file.keys))
        case 1:
            file.n_tensors = _integer(rng, len(file.tensors))
        case 2:
            file.version = _integer(rng, 3) & 2**32 - 1
        case 3:
            file.magic = _flipped(rng, file.magic, 1)
    return f"{file.n_keys} keys, {file.n_tensors} tensors, version {file.version}, magic {file.magic!r}"


def _signed(n: int) -> int:
    return (n + 2**63) % 2**64 - 2**63


Damage = Callable[[Random, GGUF], str]
STRUCTURAL: tuple[tuple[Damage, int], ...] = (  # with how often
    (_change_value, 12),
    (_change_number, 14),
    (_change_type, 5),
    (_change_length, 6),
    (_swap_elements, 4),
    (_make_array, 3),
    (_drop_key, 4),
    (_double_key, 1),
    (_rename_key, 2),
    (_swap_values, 4),
    (_add_key, 8),
    (_drop_tensor, 4),
    (_double_tensor, 3),
    (_rename_tensor, 2),
    (_swap_tensors, 3),
    (_change_shape, 4),
    (_resize, 4),
    (_retype, 6),
    (_retype_alike, 4),
    (_change_kind, 3),
    (_change_offset, 2),
    (_change_data, 4),
    (_change_counts, 3),
)


def _blind(rng: Random, data: bytes, header: int) -> tuple[bytes, str]:
    match rng.randrange(8):
        case 0:
            n = rng.choice((rng.randrange(len(data)), rng.randrange(header)))
            return data[:n], f"cut to {n} bytes"
        case 1:
            at, more = rng.randrange(header), rng.randbytes(rng.choice((1, 2, 4, 8, 32, 100)))
            return data[:at] + more + data[at:], f"{len(more)} bytes inserted at {at}"
        case 2:
            at, n = rng.randrange(header), rng.choice((1, 2, 4, 8, 32, 100))
            return data[:at] + data[at + n :], f"{n} bytes taken out at {at}"
        case 3:
            at, size = rng.randrange(header - 8), rng.choice((4, 8))
            new = (_integer(rng, int.from_bytes(data[at : at + size], "little")) & 2 ** (8 * size) - 1).to_bytes(
                size, "little"
            )
            return data[:at] + new + data[at + size :], f"{size} bytes at {at} are {new!r}"
        case 4:
            return _flipped(rng, data, rng.choice((1, 10, 100))), "bytes flipped anywhere"
    n = rng.choice((1, 1, 1, 2, 4, 8, 30))
    return _flipped(rng, data, n, stop=header), f"{n} bytes of the header flipped"


def damaged(file: GGUF, rng: Random) -> tuple[bytes, list[str]]:
    """Return a damaged copy, and a list of its damage."""
    file = file.copy()
    done = []
    if rng.random() < 0.75:
        kinds, weights = zip(*STRUCTURAL, strict=True)
        for change in rng.choices(kinds, weights, k=rng.choice((1, 1, 1, 1, 2, 3))):
            with suppress(IndexError, ValueError):  # an earlier change may have removed all candidates
                done.append(f"{change.__name__}: {change(rng, file)}")
    data = file.encoded()
    if not done or rng.random() < 0.05:
        data, what = _blind(rng, data, file.header_size)
        done.append(what)
    return data, done
