"""Comparison of logits by their bits: docs/explanation/exactness.md says where rows do not affect each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymtp import build_info

FEATURES = build_info()["cpu_features"]
ROWS_ALONE = "AVX2" in FEATURES or ("NEON" in FEATURES and "SVE" not in FEATURES)
# options for texts that are cut: elsewhere, differences in the last bits are too small in F32 to matter
FOR_CUTS: dict[str, Any] = {} if ROWS_ALONE else {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}


def assert_same(one: NDArray[np.float32], other: NDArray[np.float32], atol: float) -> None:
    """Assert that rows have equal bits, or nearly equal values on processors where rows affect each other."""
    np.testing.assert_allclose(one, other, atol=0 if ROWS_ALONE else atol, rtol=0 if ROWS_ALONE else 1e-5)
