"""GGUF files with random damage, for tools/checks/fuzz.py.

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
# what llama.cpp reads of any file or of any architecture ("."), and these models do not have: names by their type
_ABSENT = {
    "UINT32": "general.alignment tokenizer.ggml.eot_token_id tokenizer.ggml.token_type_count .embedding_length_out "
    ".pooling_type .expert_count .expert_used_count .expert_group_count .vocab_size .expert_group_used_count "
    ".rope.scaling.original_context_length .attention.key_length_swa .rope.dimension_count_swa",
    "UINT16": "split.count split.no",
    "INT32": "split.tensors.count tokenizer.ggml.suppress_tokens",
    "BOOL": "tokenizer.ggml.add_eos_token .attention.causal",
    "FLOAT32": "tokenizer.ggml.scores .rope.scaling.factor .rope.scaling.attn_factor",
    "INT8": "tokenizer.ggml.precompiled_charsmap",
    "STRING": ".rope.scaling.type .classifier.output_labels",
}
# the same of projectors
_ABSENT_VISION = {
    "BOOL": "clip.has_audio_encoder clip.has_gen_audio_encoder clip.use_silu",
    "UINT32": "clip.vision.attention.head_dim clip.vision.attention.head_count_kv clip.vision.n_wa_pattern "
    "clip.vision.window_size clip.vision.image_min_pixels clip.vision.image_max_pixels "
    "clip.vision.preproc_max_tiles clip.vision.projector.scale_factor clip.minicpmv_version general.alignment",
    "INT32": "clip.vision.feature_layer clip.vision.image_grid_pinpoints clip.vision.wa_layer_indexes",
    "STRING": "clip.vision.projector_type clip.audio.projector_type clip.vision.mm_patch_merge_type",
}
_PROJECTORS = (b"qwen2vl_merger", b"qwen2.5vl_merger", b"mlp", b"ldp", b"resampler", b"adapter", b"gemma3", b"pixtral")
_PROJECTORS += (b"idefics3", b"internvl", b"llama4", b"ultravox", b"qwen2a", b"lfm2", b"kimivl", b"glm4v", b"cogvlm")
_PATTERNS = (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0")  # of data: NaN, infinite, …


def _integer(rng: Random, old: int, n_bytes: int = 8) -> int:
    """Return another number, as it is stored without a sign in so many bytes."""
    near = (old + 1, old - 1, old * 2, old // 2, -old, old ^ 1 << rng.randrange(32))
    return rng.choice(rng.choice((_INTEGERS, _INTEGERS, _LARGE, near, near))) & 2 ** (8 * n_bytes) - 1


def _damaged_value(rng: Random, kind: int, old: bytes) -> bytes:
    if kind == STRING:
        half = len(old) // 2
        ends = (b"", old + bytes([rng.randrange(256)]), old[:-1], b"\xff\xfe" + old, old[:half] + b"\0" + old[half:])
        others = (
            rng.choice(_PROJECTORS if old.endswith(b"_merger") else _WORDS),
            rng.randbytes(rng.choice((1, 3, 40, 5000))),
            _flipped(rng, old, 1),
        )
        return rng.choice((*ends, *others))
    if kind not in SIZES:
        return old
    code = "<" + SCALARS[GGUFValueType(kind)]
    if code in ("<f", "<d"):
        (number,) = struct.unpack(code, old)
        return struct.pack(code, rng.choice((*_FLOATS, number * 2, number / 2, -number)))
    return _integer(rng, int.from_bytes(old, "little"), len(old)).to_bytes(len(old), "little")


def _flipped(rng: Random, data: bytes, n: int, stop: int | None = None) -> bytes:
    changed = bytearray(data)
    stop = len(data) if stop is None else min(stop, len(data))
    for _ in range(n if stop else 0):
        at = rng.randrange(stop)
        changed[at] = rng.choice((changed[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
    return bytes(changed)


def _changed_list(rng: Random, old: list[Any]) -> list[Any]:
    """Cut, repeat, empty, reverse or swap the elements of a list."""
    one, two = rng.randrange(len(old)), rng.randrange(len(old))
    swapped = [*old]
    swapped[one], swapped[two] = old[two], rng.choice((old[one], old[two]))
    more = old + rng.choices(old, k=rng.choice((1, 2, 30)))
    return rng.choice((old[:one], old[:one] + old[one + 1 :], more, [], old[::-1], swapped, swapped, swapped))


def _is_projector(file: GGUF) -> bool:
    """Tell whether a file is a projector, or was before its damage."""
    return any(tensor.name.startswith(b"v.") for tensor in file.tensors)


def _change_key(rng: Random, file: GGUF) -> Key:
    """Change a value, the type, or the elements of a key."""
    key = rng.choice(file.keys)
    match rng.randrange(8):
        case 0:
            key.kind = rng.choice((*SIZES, STRING, ARRAY, 13, 2**31, 2**32 - 1))
            if rng.random() < 0.7 and key.kind in SIZES:
                key.values = [value[: SIZES[key.kind]].ljust(SIZES[key.kind], b"\0") for value in key.values]
        case 1:
            # llama.cpp also accepts one number for all blocks
            key.is_array, n = not key.is_array, rng.choice((0, 1, 4, 5, 5, 5, 6, 513))
            key.values = key.values * n if key.is_array else key.values[:1]
        case 2 | 3 if key.is_array:
            key.values = _changed_list(rng, key.values)
        case 4 if key.is_array:
            key.counted = _integer(rng, len(key.values))
        case _:
            for i in rng.sample(range(len(key.values)), min(len(key.values), rng.choice((1, 1, 1, 2, 5)))):
                key.values[i] = _damaged_value(rng, key.kind, key.values[i])
    return key


def _change_number(rng: Random, file: GGUF) -> Key:
    """Change a number of the architecture, which decides on shapes."""
    key = rng.choice([key for key in file.keys if not key.is_array and key.name.startswith((b"qwen", b"clip."))])
    key.values[0] = _damaged_value(rng, key.kind, key.values[0])
    return key


def _change_members(rng: Random, file: GGUF) -> Any:
    """Remove, double or rename a key or a tensor, or swap the names of two."""
    parts: list[Any] = rng.choice((file.keys, file.tensors))
    part, other = rng.sample(parts, 2)
    match rng.randrange(6):
        case 0 | 1:
            parts.remove(part)
        case 2:
            name = rng.choice((part.name, *(part.name.replace(b"weight", word) for word in (b"bias", b"scale"))))
            parts.insert(rng.randrange(len(parts) + 1), replace(part, name=name))
        case 3:
            names = (other.name, part.name * 4, b"output.weight", b"blk.0.attn_q.weight")
            if _is_projector(file):
                names += (b"v.class_embd", b"v.pre_ln.weight", b"v.deepstack.0.fc1.weight", b"v.blk.0.attn_q.weight")
            part.name = rng.choice((_flipped(rng, part.name, 1), b"", rng.choice(names)))
        case _:
            part.name, other.name = other.name, part.name
    return part.name, other.name


def _add_key(rng: Random, file: GGUF) -> Key:
    absent = _ABSENT_VISION if _is_projector(file) else _ABSENT
    of_type, name = rng.choice([(kind, name) for kind, names in absent.items() for name in names.split()])
    kind, arch = int(GGUFValueType[of_type]), file.keys[0].values[0] if name[0] == "." else b""
    n = rng.choice((None, None, None, 0, 1, 5))
    old = b"linear" if kind == STRING else bytes(SIZES[kind])
    values = [_damaged_value(rng, kind, old) for _ in range(1 if n is None else n)]
    file.keys.append(Key(arch + name.encode(), kind, values, is_array=n is not None))
    return file.keys[-1]


def _change_entry(rng: Random, file: GGUF) -> Any:
    """Change the stated shape, type or offset of a tensor, but not its data."""
    tensor = rng.choice(file.tensors)
    at = rng.randrange(len(tensor.shape))
    match rng.randrange(6):
        case 0:
            tensor.n_dims = _integer(rng, len(tensor.shape), 4)
        case 1:
            tensor.shape = rng.choice(([*tensor.shape, rng.choice((0, 1, 2))], tensor.shape[::-1]))
        case 2:
            tensor.shape[at] = (_integer(rng, tensor.shape[at]) + 2**63) % 2**64 - 2**63
        case 3:
            tensor.offset = _integer(rng, rng.choice((0, 32, 4096)))
        case _:
            tensor.kind = rng.choice((rng.randrange(64), _integer(rng, tensor.kind)))
    return tensor.name, tensor.shape, tensor.kind, tensor.offset


def _change_tensor(rng: Random, file: GGUF) -> Any:
    """Change the shape or the type of tensors together with their data: only the check of the model can find it."""
    tensor = rng.choice(file.tensors)
    tensors, at = [tensor], rng.randrange(len(tensor.shape))
    match rng.randrange(4):
        case 0:
            old = tensor.shape[at]
            tensor.shape[at] = rng.choice((0, 1, 2, old + 32, old * 2, max(1, old // 2)))
        case 1:
            pattern = rng.choice((*_PATTERNS, rng.randbytes(64)))
            tensor.data = (pattern * (len(tensor.data) // len(pattern) + 1))[: len(tensor.data)]
            return tensor.name, pattern
        case _:
            ending = tensor.name.rsplit(b".", 2)[-2:]  # the same in each block
            if rng.random() < 0.4:
                tensors = [one for one in file.tensors if one.name.rsplit(b".", 2)[-2:] == ending]
            kind = rng.choice((*QUANTS, *QUANTS, 4, 5, 31, 42, 43, 99))
            for one in tensors:
                one.kind = kind
    for one in tensors:
        _refill(rng, one)
    return [(one.name, one.shape, one.kind) for one in tensors]


def _refill(rng: Random, tensor: TensorInfo) -> None:
    n = tensor_bytes(tensor.shape, tensor.kind)
    tensor.data = (tensor.data * (n // max(1, len(tensor.data)) + 1))[:n] if rng.random() < 0.5 else rng.randbytes(n)


def _change_counts(rng: Random, file: GGUF) -> Any:
    match rng.randrange(4):
        case 0:
            file.n_keys = _integer(rng, len(file.keys))
        case 1:
            file.n_tensors = _integer(rng, len(file.tensors))
        case 2:
            file.version = _integer(rng, 3, 4)
        case 3:
            file.magic = _flipped(rng, file.magic, 1)
    return file.n_keys, file.n_tensors, file.version, file.magic


STRUCTURAL: dict[Callable[[Random, GGUF], Any], int] = {  # with how often
    **{_change_key: 29, _change_number: 14, _change_members: 22, _add_key: 8},
    **{_change_entry: 9, _change_tensor: 18, _change_counts: 3},
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
            new = _integer(rng, int.from_bytes(data[at : at + size], "little"), size)
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
    file, done = file.copy(), list[str]()
    if rng.random() < 0.75:
        for change in rng.choices([*STRUCTURAL], [*STRUCTURAL.values()], k=rng.choice((1, 1, 1, 1, 2, 3))):
            with suppress(IndexError, ValueError):  # an earlier change may have removed all candidates
                done.append(f"{change.__name__}: {change(rng, file)!r:.300}")
    data = file.encoded()
    if not done or rng.random() < 0.05:
        data, what = damage_bytes(rng, data, file.header_size)
        done.append(what)
    return data, done
