"""Types of weights in GGUF files: those of the gguf package, with what gguf 0.19 lacks of Q1_0 and Q2_0."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray


def _add_type(name: str, number: int, block_size: int, block_bytes: int) -> GGMLQuantizationType:
    """Add a type to the tables of the gguf package unless they have it. Return it."""
    if name not in GGMLQuantizationType.__members__:
        kind = int.__new__(GGMLQuantizationType, number)
        kind._name_, kind._value_ = name, number
        GGMLQuantizationType._member_map_[name] = kind
        GGMLQuantizationType._value2member_map_[number] = kind
        GGML_QUANT_SIZES[kind] = (block_size, block_bytes)
    return GGMLQuantizationType[name]


Q1_0 = GGMLQuantizationType.Q1_0
Q2_0 = _add_type("Q2_0", 42, 64, 2 + 16)  # ggml/include/ggml.h, ggml/src/ggml-common.h
_BITS = {Q1_0: 1, Q2_0: 2}


def dequantize(data: NDArray[Any], kind: GGMLQuantizationType) -> NDArray[np.float32]:
    """Return the values of rows of weights, as gguf.quants.dequantize does, and of Q1_0 and Q2_0.

    A block of both has a scale in F16, then unsigned integers whose lowest bits come first (dequantize_row_q1_0 and
    dequantize_row_q2_0 in ggml/src/ggml-quants.c). An integer i stands for 2·i - 1 in Q1_0, and for i - 1 in Q2_0.
    """
    if kind not in _BITS:
        # As one long row: the package takes 16 rows at a time, and so small arrays that most of the time is overhead
        values: NDArray[np.float32] = quants.dequantize(data.reshape(1, -1), kind).reshape(*data.shape[:-1], -1)
        return values
    bits, (_, block_bytes) = _BITS[kind], GGML_QUANT_SIZES[kind]
    blocks = data.view(np.uint8).reshape(*data.shape[:-1], -1, block_bytes)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    integers = (blocks[..., 2:, np.newaxis] >> shifts) & np.uint8(2**bits - 1)
    scales = blocks[..., :2].copy().view("<f2").astype(np.float32)
    factor = 2 if kind == Q1_0 else 1
    flat = (integers.astype(np.float32) * factor - 1).reshape(*blocks.shape[:-1], -1)
    return (scales * flat).reshape(*data.shape[:-1], -1)
