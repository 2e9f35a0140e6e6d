"""The parts of a depth's choice by themselves: what native/runtime/acceptance.h and native/runtime/costs.h estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymtp.native import ffi, lib

# as native/runtime/tuning.h names them
PLAIN = 6
WARM = 2


class Calibration:
    """pymtp_calibration."""

    def __init__(self) -> None:
        self.native: Any = ffi.gc(lib.pymtp_calibration_init(), lib.pymtp_calibration_free)

    def observe(self, confidence: float, accepted: bool) -> None:
        lib.pymtp_calibration_observe(self.native, confidence, accepted)

    def probability(self, confidence: float, expected: float) -> float:
        return float(lib.pymtp_calibration_probability(self.native, confidence, expected))


def window_tokens(rates: Sequence[float]) -> list[float]:
    tokens = ffi.new("double[]", 1 + len(rates))
    lib.pymtp_window_tokens(rates, len(rates), tokens)
    return list(tokens)
