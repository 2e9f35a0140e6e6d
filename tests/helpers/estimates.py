"""The native estimates behind a depth policy, for tests of their own.

They are in acceptance.h, costs.h and batch_costs.h of native/runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymtp.drafting.depth import RoundCosts
from pymtp.native import ffi, lib

# the names of native/runtime/tuning.h
PLAIN = 6
WARM = 2


class BatchCosts:
    """The cost estimates for rounds of several sequences, by the number of rows."""

    def __init__(self, single: RoundCosts) -> None:
        """Begin with the costs of rounds of one sequence."""
        with single.lock:
            self.native: Any = ffi.gc(lib.pymtp_batch_costs_init(single.native), lib.pymtp_batch_costs_free)

    def observe(
        self, n_seqs: int, n_past: int, drafted: int, draft_seconds: float, rows: int, verify_seconds: float, cold: bool
    ) -> None:
        """Learn from a round: chains of `drafted` steps and a verification of each sequence's rows after n_past tokens.

        cold: no earlier decode had as many rows.
        """
        lib.pymtp_batch_costs_observe(self.native, n_seqs, n_past, drafted, draft_seconds, rows, verify_seconds, cold)

    def rounds(self, n_seqs: int, top: int, n_past: int) -> tuple[list[float], list[float]] | None:
        """Return the estimated seconds of rounds at the depths 0 to `top`, and their lower bounds.

        None before the first measurement.
        """
        likely, least = ffi.new("double[]", 1 + top), ffi.new("double[]", 1 + top)
        if not lib.pymtp_batch_costs_rounds(self.native, n_seqs, top, n_past, likely, least):
            return None
        return list(likely), list(least)


class Acceptance:
    """The estimated acceptance of each draft, if those before it are accepted; see native/runtime/acceptance.h."""

    def __init__(self, after: Acceptance | None = None) -> None:
        """Begin with the Acceptance of earlier texts, with the weight of a few drafts, or without data."""
        native = lib.pymtp_acceptance_init(after.native if after else ffi.NULL)
        self.native: Any = ffi.gc(native, lib.pymtp_acceptance_free)

    def observe(self, told: int, right: int, untold: Sequence[float] = (), tokens: int | None = None) -> None:
        """Learn from a round: the target decided on `told` drafts, and the first `right` of them were right.

        untold: for each draft after them, the probability that it was right if the one before it was.
        tokens: the number of tokens by which older observations fade; None for the round's own tokens.
        """
        fades = 1 + right if tokens is None else tokens
        lib.pymtp_acceptance_observe(self.native, told, right, untold, len(untold), fades)

    def rates(self, n: int, right: float = 0.0) -> list[float]:
        """Return the estimated acceptance of the first n drafts.

        right: a number of imagined right drafts, for an optimistic estimate.
        """
        rates = ffi.new("double[]", n)
        lib.pymtp_acceptance_rates(self.native, n, right, rates)
        return list(rates)


class Calibration:
    """The native pymtp_calibration: acceptance by the head's confidence."""

    def __init__(self) -> None:
        self.native: Any = ffi.gc(lib.pymtp_calibration_init(), lib.pymtp_calibration_free)

    def observe(self, confidence: float, accepted: bool) -> None:
        lib.pymtp_calibration_observe(self.native, confidence, accepted)

    def probability(self, confidence: float, expected: float) -> float:
        return float(lib.pymtp_calibration_probability(self.native, confidence, expected))


def window_tokens(rates: Sequence[float]) -> list[float]:
    tokens = ffi.new("double[]", 1 + len(rates))
    lib.pymtp_expected_round_tokens(rates, len(rates), tokens)
    return list(tokens)
