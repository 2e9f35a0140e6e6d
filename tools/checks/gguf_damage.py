"""Damages GGUF files, for fuzz_models.py and fuzz_heads.py.

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
from typing import Any

from gguf import GGUFValueType
from makers.gguf_parts import ARRAY, GGUF, QUANTS, SCALARS, SIZES, STRING, Key, TensorInfo, tensor_bytes

_INTEGERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 127, 128, 255, 256, 257, 512, 513, 1024, 1025, 4096, 2**16 - 1)
_LARGE = tuple(2**n + d for n in (16, 20, 24, 30, 31, 32, 33, 40, 62, 63) for d in (-1, 0, 1))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-6, -1e-6, 1e38, -1e38, math.inf, -math.inf, math.nan, 0.5, 2.0, 1e4)
_WORDS = (b"llama", b"bert", b"t5", b"rwkv", b"none", b"test", b"plamo2", b"gemma4", b"qwen2", b"gpt2")
# what llama.cpp reads of any file or architecture, and these models do not have: names by their type
_GENERAL = {
    "UINT32": "general.alignment tokenizer.ggml.eot_token_id tokenizer.ggml.token_type_count",
    "UINT16": "split.count split.no",
    "INT32": "split.tensors.count tokenizer.ggml.suppress_tokens",
    "BOOL": "tokenizer.ggml.add_eos_token",
    "FLOAT32": "tokenizer.ggml.scores",
    "INT8": "tokenizer.ggml.precompiled_charsmap",
}
_FOREIGN = {
    "UINT32": "embedding_length_out pooling_type expert_count expert_used_count expert_group_count vocab_size "
    "expert_group_used_count rope.scaling.original_context_length attention.key_length_swa rope.dimension_count_swa",
    "BOOL": "attention.causal",
    "STRING": "rope.scaling.type classifier.output_labels",
    "FLOAT32": "rope.scaling.factor rope.scaling.attn_factor",
}


def _integer(rng: Random, old: int) -> int:
    near = (old + 1, old - 1, old * 2, old // 2, -old, old ^ 1 << rng.randrange(32))
    numbers = rng.choice((_INTEGERS, _INTEGERS, _LARGE, near, near))
    return rng.choice(numbers)


def _damaged_value(rng: Random, kind: int, old: bytes) -> bytes:
    if kind == STRING:
        half = len(old) // 2
        ends = (b"", old + bytes([rng.randrange(256)]), old[:-1], b"\xff\xfe" + old, old[:half] + b"\0" + old[half:])
        others = (rng.choice(_WORDS), rng.randbytes(rng.choice((1, 3, 40, 5000))), _flipped(rng, old, 1))
        return rng.choice((*ends, *others))
    if kind not in SIZES:
        return old
    code = "<" + SCALARS[GGUFValueType(kind)]
    if code in ("<f", "<d"):
        (number,) = struct.unpack(code, old)
        return struct.pack(code, rng.choice((*_FLOATS, number * 2, number / 2, -number)))
    value = _integer(rng, int.from_bytes(old, "little")) & 2 ** (8 * len(old)) - 1
    return value.to_bytes(len(old), "little")


def _flipped(rng: Random, data: bytes, n: int, stop: int | None = None) -> bytes:
    changed = bytearray(data)
    stop = len(data) if stop is None else min(stop, len(data))
    for _ in range(n if stop else 0):
        at = rng.randrange(stop)
        changed[at] = rng.choice((changed[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
    return bytes(changed)


def _part(rng: Random, file: GGUF) -> tuple[list[Any], Any]:
    """Return the keys or the tensors of a file, and one of them."""
    parts: list[Any] = rng.choice((file.keys, file.tensors))
    return parts, rng.choice(parts)


def _change_value(rng: Random, file: GGUF) -> str:
    key = rng.choice(file.keys)
    # llama.cpp also accepts one number for all blocks
    at = rng.sample(range(len(key.values)), min(len(key.values), rng.choice((1, 1, 1, 2, 5))))
    for i in at:
        key.values[i] = _damaged_value(rng, key.kind, key.values[i])
    return f"{key.name!r} at {at}"


def _change_number(rng: Random, file: GGUF) -> str:
    """Change a number of the architecture, which decides on shapes."""
    key = rng.choice([key for key in file.keys if not key.is_array and key.name.startswith(b"qwen")])
    key.values[0] = _damaged_value(rng, key.kind, key.values[0])
    return f"{key.name!r}"


def _change_type(rng: Random, file: GGUF) -> str:
    key = rng.choice(file.keys)
    key.kind = rng.choice((*SIZES, STRING, ARRAY, 13, 2**31, 2**32 - 1))
    if rng.random() < 0.7 and key.kind in SIZES:
        size = SIZES[key.kind]
        key.values = [value[:size].ljust(size, b"\0") for value in key.values]
    return f"{key.name!r} to {key.kind}"


def _change_length(rng: Random, file: GGUF) -> str:
    key = rng.choice([key for key in file.keys if key.is_array])
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
    return f"{key.name!r}"


def _swap_elements(rng: Random, file: GGUF) -> str:
    key = rng.choice([key for key in file.keys if key.is_array and len(key.values) > 1])
    i, j = rng.sample(range(len(key.values)), 2)
    twice = rng.random() < 0.5
    key.values[i], key.values[j] = key.values[j], key.values[j if twice else i]
    return f"{key.name!r}: {i} and {j}, twice: {twice}"


def _make_array(rng: Random, file: GGUF) -> str:
    key = rng.choice([key for key in file.keys if not key.is_array])
    key.is_array, key.values = True, key.values * rng.choice((0, 1, 4, 5, 5, 5, 6, 513))
    return f"{key.name!r} of {len(key.values)}"


def _drop(rng: Random, file: GGUF) -> str:
    parts, part = _part(rng, file)
    parts.remove(part)
    return f"{part.name!r}"


def _double(rng: Random, file: GGUF) -> str:
    parts, part = _part(rng, file)
    name = rng.choice((part.name, part.name.replace(b"weight", b"bias"), part.name.replace(b"weight", b"scale")))
    parts.insert(rng.randrange(len(parts) + 1), replace(part, name=name))
    return f"{part.name!r} as {name!r}"


def _rename(rng: Random, file: GGUF) -> str:
    parts, part = _part(rng, file)
    others = (rng.choice(parts).name, part.name * 4, b"output.weight", b"blk.0.attn_q.weight")
    part.name = rng.choice((_flipped(rng, part.name, 1), b"", rng.choice(others)))
    return f"to {part.name!r}"


def _swap(rng: Random, file: GGUF) -> str:
    """Swap the names of two tensors, or the values of two keys."""
    one, two = rng.sample(rng.choice((file.keys, file.tensors)), 2)
    one.name, two.name = two.name, one.name
    return f"{one.name!r} and {two.name!r}"


def _add_key(rng: Random, file: GGUF) -> str:
    names = rng.choice((_GENERAL, _FOREIGN))
    of_type = rng.choice([kind for kind, each in names.items() for _ in each.split()])
    name, kind = rng.choice(names[of_type].split()).encode(), int(GGUFValueType[of_type])
    if names is _FOREIGN:
        name = file.keys[0].values[0] + b"." + name
    old = b"linear" if kind == STRING else bytes(SIZES[kind])
    n = rng.choice((None, None, None, 0, 1, 5))
    values = [_damaged_value(rng, kind, old) for _ in range(1 if n is None else n)]
    file.keys.append(Key(name, kind, values, is_array=n is not None))
    return f"{name!r}: {values[:1]}"


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
            tensor.shape[at] = (_integer(rng, tensor.shape[at]) + 2**63) % 2**64 - 2**63
    return f"{tensor.name!r}: {tensor.shape}"


def _resize(rng: Random, file: GGUF) -> str:
    """Change the shape of a tensor and its data: only the check of the model can find it."""
    tensor = rng.choice(file.tensors)
    at = rng.randrange(len(tensor.shape))
    tensor.shape[at] = rng.choice((0, 1, 2, tensor.shape[at] + 32, tensor.shape[at] * 2, max(1, tensor.shape[at] // 2)))
    return _refill(rng, tensor)


def _retype(rng: Random, file: GGUF) -> str:
    """Change the type of a tensor and its data, or of all tensors with its name in their blocks."""
    tensor = rng.choice(file.tensors)
    alike = [one for one in file.tensors if one.name.rsplit(b".", 2)[-2:] == tensor.name.rsplit(b".", 2)[-2:]]
    kind = rng.choice((*QUANTS, *QUANTS, 4, 5, 31, 42, 43, 99))
    done = ""
    for one in alike if rng.random() < 0.4 else [tensor]:
        one.kind = kind
        done = _refill(rng, one)
    return done


def _refill(rng: Random, tensor: TensorInfo) -> str:
    n = tensor_bytes(tensor.shape, tensor.kind)
    tensor.data = (tensor.data * (n // max(1, len(tensor.data)) + 1))[:n] if rng.random() < 0.5 else rng.randbytes(n)
    return f"{tensor.name!r} is {tensor.shape} of type {tensor.kind}"


def _change_entry(rng: Random, file: GGUF) -> str:
    """Change the stated type or the stated offset of a tensor."""
    tensor = rng.choice(file.tensors)
    if rng.random() < 0.6:
        tensor.kind = rng.choice((rng.randrange(64), _integer(rng, tensor.kind)))
    else:
        tensor.offset = _integer(rng, rng.choice((0, 32, 4096))) & 2**64 - 1
    return f"{tensor.name!r}: type {tensor.kind}, offset {tensor.offset}"


def _change_data(rng: Random, file: GGUF) -> str:
    tensor = rng.choice(file.tensors)
    pattern = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0", rng.randbytes(64)))
    tensor.data = (pattern * (len(tensor.data) // len(pattern) + 1))[: len(tensor.data)]
    return f"{tensor.name!r}"


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


Damage = Callable[[Random, GGUF], str]
STRUCTURAL: dict[Damage, int] = {  # with how often
    **{_change_value: 12, _change_number: 14, _change_type: 5, _change_length: 6, _swap_elements: 4, _make_array: 3},
    **{_drop: 8, _double: 4, _rename: 4, _swap: 7, _add_key: 8},
    **{_change_shape: 4, _resize: 4, _retype: 10, _change_entry: 5, _change_data: 4, _change_counts: 3},
}


def damage_bytes(rng: Random, data: bytes, stop: int) -> tuple[bytes, str]:
    """Damage bytes before `stop`, or anywhere; return the new bytes, and a description."""
    at, n = rng.randrange(max(1, stop - 8)), rng.choice((1, 2, 4, 8, 32, 100, 512, 4096))
    match rng.randrange(9):
        case 0:
            n = rng.choice((rng.randrange(len(data)), rng.randrange(stop)))
            return data[:n], f"cut to {n} bytes"
        case 1:
            return data[:at] + rng.randbytes(n) + data[at:], f"{n} bytes inserted at {at}"
        case 2:
            return data[:at] + data[at + n :], f"{n} bytes taken out at {at}"
        case 3:
            size = rng.choice((4, 8))
            new = _integer(rng, int.from_bytes(data[at : at + size], "little")) & 2 ** (8 * size) - 1
            return data[:at] + new.to_bytes(size, "little") + data[at + size :], f"{size} bytes at {at} are {new}"
        case 4:
            new_bytes = rng.choice((bytes(n), b"\xff" * n, rng.randbytes(n)))[: len(data) - at]
            return data[:at] + new_bytes + data[at + len(new_bytes) :], f"{n} bytes at {at} overwritten"
        case 5:
            changed = bytearray(data)
            one, two = (rng.randrange(max(1, len(data) - n)) for _ in range(2))
            changed[one : one + n], changed[two : two + n] = data[two : two + n], data[one : one + n]
            return bytes(changed[: len(data)]), f"{n} bytes at {one} and {two} swapped"
        case 6:
            return _flipped(rng, data, rng.choice((1, 10, 100))), "bytes flipped anywhere"
    n = rng.choice((1, 1, 1, 2, 4, 8, 30))
    return _flipped(rng, data, n, stop), f"{n} bytes before {stop} flipped"


def damaged(file: GGUF, rng: Random) -> tuple[bytes, list[str]]:
    """Return a damaged copy, and a list of its damage."""
    file = file.copy()
    done = []
    if rng.random() < 0.75:
        for change in rng.choices([*STRUCTURAL], [*STRUCTURAL.values()], k=rng.choice((1, 1, 1, 1, 2, 3))):
            with suppress(IndexError, ValueError):  # an earlier change may have removed all candidates
                done.append(f"{change.__name__}: {change(rng, file)}")
    data = file.encoded()
    if not done or rng.random() < 0.05:
        data, what = damage_bytes(rng, data, file.header_size)
        done.append(what)
    return data, done
