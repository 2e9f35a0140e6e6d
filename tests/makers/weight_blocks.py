"""The block formats of ggml: their fields, and the values that their integers stand for with a scale of one.

The layouts are those of ggml/src/ggml-common.h in llama.cpp, the values those of dequantize_row_* in ggml-quants.c.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, MXFP4, NVFP4
from numpy.typing import NDArray

from makers.gguf_types import Q1_0, Q2_0

# "scale" and "min" are numbers in F16. "ints" are all other bits, with the scales, and minima, of the parts of a block.
BLOCKS = {
    T.Q8_0: np.dtype([("scale", "<u2"), ("ints", "i1", 32)]),
    T.Q4_0: np.dtype([("scale", "<u2"), ("ints", "u1", 16)]),
    T.Q4_1: np.dtype([("scale", "<u2"), ("min", "<u2"), ("ints", "u1", 16)]),
    T.Q5_0: np.dtype([("scale", "<u2"), ("ints", "u1", 4 + 16)]),
    T.Q5_1: np.dtype([("scale", "<u2"), ("min", "<u2"), ("ints", "u1", 4 + 16)]),
    T.IQ4_NL: np.dtype([("scale", "<u2"), ("ints", "u1", 16)]),
    T.Q2_K: np.dtype([("ints", "u1", 16 + 64), ("scale", "<u2"), ("min", "<u2")]),
    T.Q3_K: np.dtype([("ints", "u1", 32 + 64 + 12), ("scale", "<u2")]),
    T.Q4_K: np.dtype([("scale", "<u2"), ("min", "<u2"), ("ints", "u1", 12 + 128)]),
    T.Q5_K: np.dtype([("scale", "<u2"), ("min", "<u2"), ("ints", "u1", 12 + 32 + 128)]),
    T.Q6_K: np.dtype([("ints", "u1", 128 + 64 + 16), ("scale", "<u2")]),
    T.IQ4_XS: np.dtype([("scale", "<u2"), ("ints", "u1", 6 + 128)]),
    T.IQ1_S: np.dtype([("scale", "<u2"), ("ints", "u1", 32 + 16)]),
    T.IQ1_M: np.dtype([("ints", "u1", 32 + 16), ("scales", "<u2", 4)]),  # a quarter of the scale in each
    T.IQ2_XXS: np.dtype([("scale", "<u2"), ("ints", "u1", 64)]),
    T.IQ2_XS: np.dtype([("scale", "<u2"), ("ints", "u1", 64 + 8)]),
    T.IQ2_S: np.dtype([("scale", "<u2"), ("ints", "u1", 64 + 8 + 8)]),
    T.IQ3_XXS: np.dtype([("scale", "<u2"), ("ints", "u1", 96)]),
    T.IQ3_S: np.dtype([("scale", "<u2"), ("ints", "u1", 64 + 8 + 32 + 4)]),
    T.TQ1_0: np.dtype([("fives", "u1", 48), ("fours", "u1", 4), ("scale", "<u2")]),  # ternary digits in a byte
    T.TQ2_0: np.dtype([("ints", "u1", 64), ("scale", "<u2")]),
    Q1_0: np.dtype([("scale", "<u2"), ("ints", "u1", 16)]),
    Q2_0: np.dtype([("scale", "<u2"), ("ints", "u1", 16)]),
    T.MXFP4: np.dtype([("exponent", "u1"), ("ints", "u1", 16)]),
    T.NVFP4: np.dtype([("exponent", "u1", 4), ("ints", "u1", 32)]),  # with a mantissa of 3 bits, for 16 weights each
}
_THREE_BITS, _FOUR_BITS, _SIX_BITS = np.arange(8), np.arange(16), np.arange(64)
_TERNARY = np.arange(-1, 2)
_INTEGERS = {
    T.Q8_0: np.maximum(np.arange(-128, 128), -127),
    T.Q4_0: np.arange(-8, 8),
    T.Q4_1: _FOUR_BITS,
    T.Q5_0: np.arange(-16, 16),
    T.Q5_1: np.arange(32),
    T.IQ4_NL: np.array(IQ4_NL.kvalues),
    T.Q2_K: np.multiply.outer(np.arange(4), _FOUR_BITS),
    T.Q3_K: np.multiply.outer(np.arange(-4, 4), _SIX_BITS - 32),
    T.Q4_K: np.multiply.outer(_FOUR_BITS, _SIX_BITS),
    T.Q5_K: np.multiply.outer(np.arange(32), _SIX_BITS),
    T.Q6_K: np.multiply.outer(np.arange(-32, 32), np.arange(-128, 128)),
    T.IQ4_XS: np.multiply.outer(np.array(IQ4_NL.kvalues), _SIX_BITS - 32),
    T.TQ1_0: _TERNARY,
    T.TQ2_0: _TERNARY,
    Q1_0: np.array([-1, 1]),
    Q2_0: np.arange(-1, 3),
    T.MXFP4: np.array(MXFP4.kvalues),
    T.NVFP4: np.array(NVFP4.kvalues),
}
_CODEBOOKS = {  # a table of vectors, and the factors of the parts of a block
    T.IQ1_S: (IQ1_S, 2 * _THREE_BITS + 1),
    T.IQ1_M: (IQ1_M, 2 * _THREE_BITS + 1),
    T.IQ2_XXS: (IQ2_XXS, (_FOUR_BITS + 0.5) / 4),
    T.IQ2_XS: (IQ2_XS, (_FOUR_BITS + 0.5) / 4),
    T.IQ2_S: (IQ2_S, (_FOUR_BITS + 0.5) / 4),
    T.IQ3_XXS: (IQ3_XXS, (_FOUR_BITS + 0.5) / 2),
    T.IQ3_S: (IQ3_S, 2 * _FOUR_BITS + 1),
}
_SHIFT = 0.125  # all values of an IQ1 vector are shifted by this, up or down
# minima of the parts of a block, by which the integers' values are lowered
MINIMA = {T.Q2_K: _FOUR_BITS, T.Q4_K: _SIX_BITS, T.Q5_K: _SIX_BITS, T.Q4_1: -np.ones(1), T.Q5_1: -np.ones(1)}
# scales that have no sign: the value of each byte, as long as they rise
EXPONENTS: dict[T, NDArray[np.float64]] = {
    T.MXFP4: 2.0 ** (np.arange(255) - 128),
    T.NVFP4: NVFP4.ue4m3_to_fp32(np.arange(0x7F)).astype(np.float64),
}


@lru_cache
def integers(kind: T) -> NDArray[np.float64]:
    """Return what the integers of a block stand for: each value as often as uniform bits make it."""
    if kind not in _CODEBOOKS:
        return _INTEGERS[kind].astype(np.float64)
    codebook, factors = _CODEBOOKS[kind]
    codebook.init_grid()
    vectors = codebook.grid.astype(np.float64)
    if kind in (T.IQ1_S, T.IQ1_M):
        vectors = np.add.outer(vectors, [-_SHIFT, _SHIFT])
    return np.multiply.outer(vectors, factors)


def ternary_bytes(n_digits: int) -> NDArray[np.uint8]:
    """Return for each byte a byte of n_digits ternary digits, as TQ1_0 holds them: a fraction of 256, rounded up.

    Other bytes have digits too, but not the same ones in each implementation, and no quantizer writes them.
    """
    numbers = np.arange(256) * 3**n_digits // 256 * 3 ** (5 - n_digits)
    return (-(-numbers * 256 // 3**5)).astype(np.uint8)


def ternary_pairs() -> NDArray[np.uint8]:
    """Return for each byte a byte of four ternary digits, each in 2 bits, as TQ2_0 holds them."""
    numbers = np.arange(256) * 3**4 // 256
    return sum(numbers // 3**digit % 3 << 2 * digit for digit in range(4)).astype(np.uint8)
