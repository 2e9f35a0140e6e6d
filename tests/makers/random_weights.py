"""Random weights in the block formats of ggml, made as bytes: quantizing random floats would take far longer.

Random bits become the integers of a quantized block (or of a fixed-point number, for f32, f16 and bf16) unchanged, so
the integers are uniform over the format's range. A constant scale gives them the wanted standard deviation: this value
divided by the root mean square of the integers. The ranges are lopsided (q4_0 holds -8 … 7), and a mean that all
weights share would be one direction in which every layer adds up. So each block's scale has a random sign, and in
formats with minima, the minima remove the mean.
"""

from __future__ import annotations

import math

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import IQ4_NL
from numpy.typing import NDArray

from makers.model_shapes import Tensor

Bytes = NDArray[np.uint8]

TYPES = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
    "iq4_nl": GGMLQuantizationType.IQ4_NL,
    "q2_k": GGMLQuantizationType.Q2_K,
    "q3_k": GGMLQuantizationType.Q3_K,
    "q4_k": GGMLQuantizationType.Q4_K,
    "q5_k": GGMLQuantizationType.Q5_K,
    "q6_k": GGMLQuantizationType.Q6_K,
    "iq4_xs": GGMLQuantizationType.IQ4_XS,
}
CHUNK = 4 * 1024 * 1024  # weights made at once, a multiple of all block sizes: about 20 MB with temporary arrays

_BLOCKS = {
    GGMLQuantizationType.Q8_0: np.dtype([("scale", "<u2"), ("ints", "i1", 32)]),
    GGMLQuantizationType.Q4_0: np.dtype([("scale", "<u2"), ("ints", "u1", 16)]),
    GGMLQuantizationType.IQ4_NL: np.dtype([("scale", "<u2"), ("ints", "u1", 16)]),
    # with the scales, and minima, of the parts of a block
    GGMLQuantizationType.Q2_K: np.dtype([("ints", "u1", 16 + 64), ("scale", "<u2"), ("min", "<u2")]),
    GGMLQuantizationType.Q3_K: np.dtype([("ints", "u1", 32 + 64 + 12), ("scale", "<u2")]),
    GGMLQuantizationType.Q4_K: np.dtype([("scale", "<u2"), ("min", "<u2"), ("ints", "u1", 12 + 128)]),
    GGMLQuantizationType.Q5_K: np.dtype([("scale", "<u2"), ("min", "<u2"), ("ints", "u1", 12 + 32 + 128)]),
    GGMLQuantizationType.Q6_K: np.dtype([("ints", "u1", 128 + 64 + 16), ("scale", "<u2")]),
    GGMLQuantizationType.IQ4_XS: np.dtype([("scale", "<u2"), ("ints", "u1", 6 + 128)]),
}
_FOUR_BITS, _SIX_BITS = np.arange(16), np.arange(64)
_INTEGERS = {
    GGMLQuantizationType.Q8_0: np.maximum(np.arange(-128, 128), -127),
    GGMLQuantizationType.Q4_0: np.arange(-8, 8),
    GGMLQuantizationType.IQ4_NL: np.array(IQ4_NL.kvalues),
    GGMLQuantizationType.Q2_K: np.multiply.outer(np.arange(4), _FOUR_BITS),
    GGMLQuantizationType.Q3_K: np.multiply.outer(np.arange(-4, 4), _SIX_BITS - 32),
    GGMLQuantizationType.Q4_K: np.multiply.outer(_FOUR_BITS, _SIX_BITS),
    GGMLQuantizationType.Q5_K: np.multiply.outer(np.arange(32), _SIX_BITS),
    GGMLQuantizationType.Q6_K: np.multiply.outer(np.arange(-32, 32), np.arange(-128, 128)),
    GGMLQuantizationType.IQ4_XS: np.multiply.outer(np.array(IQ4_NL.kvalues), _SIX_BITS - 32),
}
_MINIMA = {  # minima of the parts of a block
    GGMLQuantizationType.Q2_K: _FOUR_BITS,
    GGMLQuantizationType.Q4_K: _SIX_BITS,
    GGMLQuantizationType.Q5_K: _SIX_BITS,
}


def type_of(tensor: Tensor, wanted: GGMLQuantizationType) -> GGMLQuantizationType:
    """Return the type that llama.cpp's quantizer gives a tensor (tensor_allows_quantization in src/llama-quant.cpp).

    Vectors, convolutions and the experts' router stay f32, rows that do not divide into blocks become f16.
    """
    if len(tensor.ne) == 1 or tensor.name.endswith(("ssm_conv1d.weight", "ffn_gate_inp.weight")):
        return GGMLQuantizationType.F32
    if wanted in _BLOCKS and tensor.ne[0] % _block_size(wanted):
        return GGMLQuantizationType.F16
    return wanted


def _block_size(kind: GGMLQuantizationType) -> int:
    return int(GGML_QUANT_SIZES[kind][0])


def n_bytes(n: int, kind: GGMLQuantizationType) -> int:
    """Return the bytes of n weights, in whole blocks."""
    if kind in _BLOCKS:
        return n // _block_size(kind) * _BLOCKS[kind].itemsize
    return n * (4 if kind == GGMLQuantizationType.F32 else 2)


def chunk(tensor: Tensor, kind: GGMLQuantizationType, start: int, key: tuple[int, ...]) -> Bytes:
    """Return the bytes of at most CHUNK weights of the tensor from index `start` on. Equal keys give equal bytes."""
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
    """Return the weights of vectors that are not random: norms, and the gates that make a delta net forget.

    A head's state decays by exp(a · softplus(dt + …)) per token. Steps from 0.001 to 0.1 and rates from 1 to 16 are the
    initial values of Mamba (Gu, Dao, arXiv 2312.00752, section 3.6): half-lives here are from 700 tokens to below one.
    """
    if tensor.name.endswith("norm.weight"):
        return np.ones(tensor.ne)
    if tensor.name.endswith(".ssm_a"):
        return -np.geomspace(1, 16, tensor.size)
    if tensor.name.endswith(".ssm_dt.bias"):
        return np.log(np.expm1(np.geomspace(0.001, 0.1, tensor.size)))  # the inverse of softplus
    return None


def _quantized(kind: GGMLQuantizationType, n: int, std: float, key: tuple[int, ...]) -> Bytes:
    data = _random_bytes(n_bytes(n, kind), key)
    blocks = data.view(_BLOCKS[kind])
    square = np.mean(np.square(_INTEGERS[kind], dtype=np.float64))
    sign = np.uint16(0x8000)  # the random bit that stays of the 16 bits of the scale
    blocks["scale"] &= sign
    if kind in _MINIMA:
        # minus a minimum of as many parts as the integers are on average: mean 0, and more of a spread
        minima = _MINIMA[kind]
        middle = _INTEGERS[kind].mean() / minima.mean()
        square += middle**2 * (np.mean(np.square(minima)) - 2 * minima.mean() ** 2)
        blocks["min"] = blocks["scale"] | np.float16(middle * std / math.sqrt(square)).view(np.uint16)
    blocks["scale"] |= np.float16(std / math.sqrt(square)).view(np.uint16)
    if kind == GGMLQuantizationType.Q8_0:
        np.maximum(blocks["ints"], -127, out=blocks["ints"])  # no quantizer writes -128
    return data


def _random_bytes(n: int, key: tuple[int, ...]) -> Bytes:
    # all 64 bits of each word: no number is drawn twice, and the interpreter's lock is released
    words = np.random.Generator(np.random.SFC64(key)).integers(
        0, 2**64 - 1, size=-(-n // 8), dtype=np.uint64, endpoint=True
    )
    return words.astype("<u8", copy=False).view(np.uint8)[:n]
