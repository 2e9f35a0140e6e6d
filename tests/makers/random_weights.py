"""Random weights in the block formats of ggml, made as bytes: quantizing random floats would take far longer.

Random bits become the integers of a quantized block (or of a fixed-point number, for f32, f16 and bf16) unchanged, so
the integers are uniform over the format's range. A constant scale gives them the wanted standard deviation: this value
divided by the root mean square of the integers. The ranges are lopsided (q4_0 holds -8 … 7), and a mean that all
weights share would be one direction in which every layer adds up. So each block's scale has a random sign, and in
formats with minima, the minima remove the mean.

Some formats differ. The scales of mxfp4 and nvfp4 have no sign, but their integers are symmetric; each scale is one of
the two neighbours of the wanted one, at random, so that their mean square is right. In tq1_0 and tq2_0, random bytes
are mapped to those that a quantizer writes.
"""

from __future__ import annotations

import math

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from makers.gguf_types import Q1_0, Q2_0
from makers.model_shapes import Tensor
from makers.weight_blocks import BLOCKS, EXPONENTS, MINIMA, integers, ternary_bytes, ternary_pairs

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
    "q4_1": GGMLQuantizationType.Q4_1,
    "q5_0": GGMLQuantizationType.Q5_0,
    "q5_1": GGMLQuantizationType.Q5_1,
    "iq1_s": GGMLQuantizationType.IQ1_S,
    "iq1_m": GGMLQuantizationType.IQ1_M,
    "iq2_xxs": GGMLQuantizationType.IQ2_XXS,
    "iq2_xs": GGMLQuantizationType.IQ2_XS,
    "iq2_s": GGMLQuantizationType.IQ2_S,
    "iq3_xxs": GGMLQuantizationType.IQ3_XXS,
    "iq3_s": GGMLQuantizationType.IQ3_S,
    "tq1_0": GGMLQuantizationType.TQ1_0,
    "tq2_0": GGMLQuantizationType.TQ2_0,
    "q1_0": Q1_0,
    "q2_0": Q2_0,
    "mxfp4": GGMLQuantizationType.MXFP4,
    "nvfp4": GGMLQuantizationType.NVFP4,
}
CHUNK = 4 * 1024 * 1024  # weights made at once, a multiple of all block sizes: about 20 MB with temporary arrays


def stays_f32(tensor: Tensor) -> bool:
    """Tell whether llama.cpp's quantizer leaves a tensor alone (tensor_allows_quantization in src/llama-quant.cpp).

    These are vectors, convolutions and the experts' router.
    """
    return len(tensor.ne) == 1 or tensor.name.endswith(("ssm_conv1d.weight", "ffn_gate_inp.weight"))


def type_of(tensor: Tensor, wanted: GGMLQuantizationType) -> GGMLQuantizationType:
    """Return the type of a tensor in a file of one type of weights. Rows that do not divide into blocks become f16."""
    if stays_f32(tensor):
        return GGMLQuantizationType.F32
    if wanted in BLOCKS and tensor.ne[0] % _block_size(wanted):
        return GGMLQuantizationType.F16
    return wanted


def _block_size(kind: GGMLQuantizationType) -> int:
    return int(GGML_QUANT_SIZES[kind][0])


def n_bytes(n: int, kind: GGMLQuantizationType) -> int:
    """Return the bytes of n weights, in whole blocks."""
    if kind in BLOCKS:
        return n // _block_size(kind) * BLOCKS[kind].itemsize
    return n * (4 if kind == GGMLQuantizationType.F32 else 2)


def chunk(tensor: Tensor, kind: GGMLQuantizationType, start: int, key: tuple[int, ...]) -> Bytes:
    """Return the bytes of at most CHUNK weights of the tensor from index `start` on. Equal keys give equal bytes."""
    n = min(CHUNK, tensor.size - start)
    fixed = _fixed(tensor)
    if fixed is not None:
        return fixed.astype("<f4").view(np.uint8)
    # keeps the variance of what goes in, so that no activation grows with the width or depth of the model
    std = 1 / math.sqrt(tensor.ne[0])
    if kind in BLOCKS:
        return _quantized(kind, n, std, key)
    # fixed point: 16 random bits, uniform in ±std·√3
    values = _random_bytes(2 * n, key).view("<i2") * np.float32(std * math.sqrt(3) / 2**15)
    if kind == GGMLQuantizationType.BF16:
        return values.astype("<f4", copy=False).view("<u2")[1::2].copy().view(np.uint8)  # the upper half
    return values.astype("<f4" if kind == GGMLQuantizationType.F32 else "<f2", copy=False).view(np.uint8)


def _fixed(tensor: Tensor) -> NDArray[np.float64] | None:
    """Return the weights of vectors that are not random: norms, scales, and the gates that make a delta net forget.

    A head's state decays by exp(a · softplus(dt + …)) per token. Steps from 0.001 to 0.1 and rates from 1 to 16 are the
    initial values of Mamba (Gu, Dao, arXiv 2312.00752, section 3.6): half-lives here are from 700 tokens to below one.
    """
    if tensor.name.endswith("norm.weight"):
        return np.ones(tensor.ne)
    if tensor.name.endswith((".scale", ".input_scale")):
        return np.geomspace(0.8, 1.25, tensor.size)  # not 1, so that a scale that is left out is noticed
    if tensor.name.endswith(".ssm_a"):
        return -np.geomspace(1, 16, tensor.size)
    if tensor.name.endswith(".ssm_dt.bias"):
        return np.log(np.expm1(np.geomspace(0.001, 0.1, tensor.size)))  # the inverse of softplus
    return None


def _quantized(kind: GGMLQuantizationType, n: int, std: float, key: tuple[int, ...]) -> Bytes:
    data = _random_bytes(n_bytes(n, kind), key)
    blocks = data.view(BLOCKS[kind])
    values = integers(kind)
    square = float(np.mean(np.square(values)))
    if kind in MINIMA:
        # minus a minimum of as many parts as the integers are on average: mean 0, and more of a spread
        minima = MINIMA[kind]
        middle = float(values.mean() / minima.mean())
        square += middle**2 * float(np.mean(np.square(minima)) - 2 * minima.mean() ** 2)
        blocks["min"] = _scales(blocks["scale"], middle * std / math.sqrt(square))
    scale = std / math.sqrt(square)
    if kind in EXPONENTS:
        blocks["exponent"] = _exponents(EXPONENTS[kind], blocks["exponent"], scale)
    elif kind == GGMLQuantizationType.IQ1_M:
        parts = blocks["scales"]  # the upper four bits of each are a quarter of the scale, the lowest quarter first
        quarters = _scales(parts[:, 3], scale)[:, np.newaxis] >> np.array([0, 4, 8, 12], np.uint16) & np.uint16(0xF)
        blocks["scales"] = parts & np.uint16(0x0FFF) | quarters << np.uint16(12)
    else:
        blocks["scale"] = _scales(blocks["scale"], scale)
    if kind == GGMLQuantizationType.Q8_0:
        np.maximum(blocks["ints"], -127, out=blocks["ints"])  # no quantizer writes -128
    elif kind == GGMLQuantizationType.TQ1_0:
        blocks["fives"], blocks["fours"] = ternary_bytes(5)[blocks["fives"]], ternary_bytes(4)[blocks["fours"]]
    elif kind == GGMLQuantizationType.TQ2_0:
        blocks["ints"] = ternary_pairs()[blocks["ints"]]
    return data


def _scales(bits: NDArray[np.uint16], scale: float) -> NDArray[np.uint16]:
    """Return the scale as F16 with the sign bits of `bits`, the random bits that stood in its place."""
    return bits & np.uint16(0x8000) ^ np.float16(scale).view(np.uint16)


def _exponents(values: NDArray[np.float64], random: Bytes, scale: float) -> Bytes:
    """Return bytes that stand for one of the two values around `scale`, with a mean square of scale².

    values: the value of each byte, rising.
    """
    low = int(np.searchsorted(values, scale, side="right")) - 1
    share = (scale**2 - values[low] ** 2) / (values[low + 1] ** 2 - values[low] ** 2)  # of the upper value
    return (low + (random < 256 * share)).astype(np.uint8)


def _random_bytes(n: int, key: tuple[int, ...]) -> Bytes:
    # all 64 bits of each word: no number is drawn twice, and the interpreter's lock is released
    words = np.random.Generator(np.random.SFC64(key)).integers(
        0, 2**64 - 1, size=-(-n // 8), dtype=np.uint64, endpoint=True
    )
    return words.astype("<u8", copy=False).view(np.uint8)[:n]
