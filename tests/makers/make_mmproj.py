"""A writer of projectors (`mmproj` GGUF files) with random weights for Qwen3.5 and 3.6 models.

The same arguments make the same bytes. What the model sees is noise, but each pixel, each position and each bias
changes it: correctness and speed can be measured. The command line is tools/models/make_mmproj.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from makers.model_shapes import Tensor
from makers.random_weights import CHUNK, TYPES, chunk, n_bytes, type_of
from makers.vision_shapes import FRAMES, PROJECTORS, VisionShape

WEIGHTS = ("f32", "f16", "bf16", "q8_0")  # the types that llama.cpp's converter writes
_FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}  # llama_ftype in include/llama.h


def make_mmproj(shape: str | VisionShape, path: Path, *, weight_type: str = "f16", seed: int = 0) -> Path:
    """Write a projector of a shape, or for a model's preset by its name, and return its path.

    weight_type: one of WEIGHTS, for the matrices; vectors and position embeddings are F32.

    Raises ValueError for an unknown preset or type. When it fails, it leaves no file behind.
    """
    if isinstance(shape, str) and shape not in PROJECTORS:
        raise ValueError(f"no projector is made for {shape!r}, but for {', '.join(PROJECTORS)}")
    if weight_type not in WEIGHTS:
        raise ValueError(f"weights of a projector cannot be {weight_type!r}, but {', '.join(WEIGHTS)}")
    name = shape if isinstance(shape, str) else "custom"
    shape = PROJECTORS[shape] if isinstance(shape, str) else shape
    writer = GGUFWriter(path, "clip")
    _add_metadata(writer, shape, name, weight_type)
    for number, tensor in enumerate(shape.tensors()):
        kind = _type_of(tensor, weight_type)
        data = _weights(tensor, kind, (seed, number)).reshape(*tensor.ne[:0:-1], -1)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    except BaseException:
        writer.close()
        path.unlink(missing_ok=True)
        raise
    writer.close()
    return path


def _add_metadata(writer: GGUFWriter, shape: VisionShape, name: str, weight_type: str) -> None:
    metadata: dict[str, Any] = {
        "general.type": "mmproj",
        "general.name": f"random weights, {name}",
        "general.description": "Random weights in a real projector's shape, for tests and benches.",
        "general.file_type": _FILE_TYPES[weight_type],
        "general.quantization_version": 2,
        **{f"clip.{key}": value for key, value in shape.metadata().items()},
    }
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        adders[type(value)](key, value)


def _type_of(tensor: Tensor, weight_type: str) -> GGMLQuantizationType:
    """Return the type of a tensor in a file of one type of weights, as conversion/base.py's MmprojModel chooses it."""
    if tensor.name.startswith("v.position_embd"):
        return GGMLQuantizationType.F32
    if tensor.name.startswith("v.patch_embd"):
        return GGMLQuantizationType.F16 if weight_type == "f16" and len(tensor.ne) > 1 else GGMLQuantizationType.F32
    return type_of(tensor, TYPES[weight_type])


def _weights(tensor: Tensor, kind: GGMLQuantizationType, key: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the bytes of a tensor.

    Matrices keep the variance of what goes in. Scales of norms are around 1, biases and positions are small beside
    the values that they are added to.
    """
    if len(tensor.ne) == 1 or tensor.name.startswith("v.position_embd"):
        values = _chunks(Tensor(tensor.name, (1, tensor.size)), kind, key).view("<f4")  # of deviation 1
        small = values * np.float32(0.3 if len(tensor.ne) > 1 else 0.1)
        return (small + np.float32(1) if _is_scale(tensor) else small).view(np.uint8)
    if tensor.name.startswith("v.patch_embd"):
        inputs, rows = math.prod(tensor.ne[:-1]) * FRAMES, -(-tensor.ne[-1] // FRAMES)
        return _chunks(Tensor(tensor.name, (inputs, rows)), kind, key)[: n_bytes(tensor.size, kind)]
    return _chunks(tensor, kind, key)


def _is_scale(tensor: Tensor) -> bool:
    return tensor.name.endswith((".ln1.weight", ".ln2.weight", ".post_ln.weight"))


def _chunks(tensor: Tensor, kind: GGMLQuantizationType, key: tuple[int, int]) -> NDArray[np.uint8]:
    parts = [chunk(tensor, kind, start, (*key, start // CHUNK)) for start in range(0, tensor.size, CHUNK)]
    data = np.concatenate(parts) if len(parts) > 1 else parts[0]
    assert data.nbytes == n_bytes(tensor.size, kind)
    return data
