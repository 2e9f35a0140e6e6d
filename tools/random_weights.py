"""Random weights in the block formats of ggml, made as bytes: quantizing random floats would take far longer.

Random bits become the integers of a quantized block (or of a fixed-point number, for f32, f16 and bf16) as they are, so
those are uniform over the format's range, and a constant scale gives them the standard deviation wanted: that divided
by the root mean square of the format's integers. The ranges are lopsided (q4_0 holds -8 … 7); a mean that all weights
share would be one direction in which every layer adds up, so each block's scale has a random sign.
"""

from __future__ import annotations

import math

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import IQ4_NL
from model_shapes import Tensor
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

TYPES = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
    "iq4_nl": GGMLQuantizationType.IQ4_NL,
}
BLOCK = 32  # weights of a block, in all three quantized types
CHUNK = 4 * 1024 * 1024  # weights made at once, a multiple of BLOCK: some 20 MB with what it takes on the way

_BLOCKS = {
    GGMLQuantizationType.Q8_0: np.dtype([("scale", "<u2"), ("ints", "i1", BLOCK)]),
    GGMLQuantizationType.Q4_0: np.dtype([("scale", "<u2"), ("ints", "u1", BLOCK // 2)]),
    GGMLQuantizationType.IQ4_NL: np.dtype([("scale", "<u2"), ("ints", "u1", BLOCK // 2)]),
}
_INTEGERS = {
    GGMLQuantizationType.Q8_0: np.maximum(np.arange(-128, 128), -127),
    GGMLQuantizationType.Q4_0: np.arange(-8, 8),
    GGMLQuantizationType.IQ4_NL: np.array(IQ4_NL.kvalues),
}


def type_of(tensor: Tensor, wanted: GGMLQuantizationType) -> GGMLQuantizationType:
    """The type that llama.cpp's quantizer gives a tensor (tensor_allows_quantization in src/llama-quant.cpp): vectors,
    convolutions and the experts' router stay f32, rows that do not divide into blocks become f16."""
    if len(tensor.ne) == 1 or tensor.name.endswith(("ssm_conv1d.weight", "ffn_gate_inp.weight")):
        return GGMLQuantizationType.F32
    if wanted in _BLOCKS and tensor.ne[0] % BLOCK:
        return GGMLQuantizationType.F16
    return wanted


def n_bytes(n: int, kind: GGMLQuantizationType) -> int:
    """Bytes of n weights, whole blocks."""
    if kind in _BLOCKS:
        return n // BLOCK * _BLOCKS[kind].itemsize
    return n * (4 if kind == GGMLQuantizationType.F32 else 2)


def chunk(tensor: Tensor, kind: GGMLQuantizationType, start: int, key: tuple[int, ...]) -> Bytes:
    """The tensor's weights from index `start` on, at most CHUNK of them, as bytes. Equal keys make equal chunks."""
    n = min(CHUNK, tensor.size - start)
    fixed = _fixed(tensor)
    if fixed is not None:
        return fixed.astype("<f4").view(np.uint8)
    # keeps the variance of what goes in, so that no activation grows with the width or depth of the model
    std = 1 / math.sqrt(tensor.ne[0])
    if kind in _BLOCKS:
        return _quantized(kind, n, std, key)
    # fixed point: 16 random bits, uniform in ±std·√3
    values = _random_bytes(2 * n, key).view("<i2") * np.float32(std * math.sqrt(3) / 2**15)
    if kind == GGMLQuantizationType.BF16:
        return values.astype("<f4", copy=False).view("<u2")[1::2].copy().view(np.uint8)  # the upper half
    return values.astype("<f4" if kind == GGMLQuantizationType.F32 else "<f2", copy=False).view(np.uint8)


def _fixed(tensor: Tensor) -> NDArray[np.float64] | None:
    """The weights of vectors that are not random: norms, and the gates that make a delta net forget.

    A head's state decays by exp(a · softplus(dt + …)) a token. Steps from 0.001 to 0.1 and rates from 1 to 16 are how
    Mamba begins (Gu, Dao, arXiv 2312.00752, section 3.6): half-lives here are from 700 tokens to less than one.
    """
    if tensor.name.endswith("norm.weight"):
        return np.ones(tensor.ne)
    if tensor.name.endswith(".ssm_a"):
        return -np.geomspace(1, 16, tensor.size)
    if tensor.name.endswith(".ssm_dt.bias"):
        return np.log(np.expm1(np.geomspace(0.001, 0.1, tensor.size)))  # softplus backwards
    return None


def _quantized(kind: GGMLQuantizationType, n: int, std: float, key: tuple[int, ...]) -> Bytes:
    data = _random_bytes(n_bytes(n, kind), key)
    blocks = data.view(_BLOCKS[kind])
    rms = math.sqrt(np.mean(np.square(_INTEGERS[kind].astype(np.float64))))
    sign = np.uint16(0x8000)  # of the 16 random bits where the scale goes, this one stays
    blocks["scale"] &= sign
    blocks["scale"] |= np.float16(std / rms).view(np.uint16)
    if kind == GGMLQuantizationType.Q8_0:
        np.maximum(blocks["ints"], -127, out=blocks["ints"])  # no quantizer writes -128
    return data


def _random_bytes(n: int, key: tuple[int, ...]) -> Bytes:
    # all 64 bits of each word: that draws nothing again, and gives the lock of the interpreter away
    words = np.random.Generator(np.random.SFC64(key)).integers(
        0, 2**64 - 1, size=-(-n // 8), dtype=np.uint64, endpoint=True
    )
    return words.astype("<u8", copy=False).view(np.uint8)[:n]
