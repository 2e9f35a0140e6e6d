"""The parts of a depth's choice by themselves: what acceptance.h, costs.h and batch_costs.h of
native/runtime estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymtp.drafting.depth import Costs
from pymtp.native import ffi, lib

# as native/runtime/tuning.h names them
PLAIN = 6
WARM = 2


class BatchCosts:
    """The same for rounds of several sequences: they go by their rows, whatever sequences these are of."""

    def __init__(self, single: Costs) -> None:
        """single: of rounds of one sequence, which these begin with."""
        with single.lock:
            self.native: Any = ffi.gc(lib.pymtp_batch_costs_init(single.native), lib.pymtp_batch_costs_free)

    def observe(
        self, n_seqs: int, n_past: int, drafted: int, draft_seconds: float, rows: int, verify_seconds: float, cold: bool
    ) -> None:
        """A round: chains of `drafted` steps and a verification of so many rows of each sequence, after n_past tokens.
        cold: no launch had as many rows before."""
        lib.pymtp_batch_costs_observe(self.native, n_seqs, n_past, drafted, draft_seconds, rows, verify_seconds, cold)

    def rounds(self, n_seqs: int, top: int, n_past: int) -> tuple[list[float], list[float]] | None:
        """The estimates for rounds at depths 0 to top, and the least that they may turn out; None before anything was
        timed."""
        likely, least = ffi.new("double[]", 1 + top), ffi.new("double[]", 1 + top)
        if not lib.pymtp_batch_costs_rounds(self.native, n_seqs, top, n_past, likely, least):
            return None
        return list(likely), list(least)


class Acceptance:
    """How likely each draft of a chain is accepted, where those before it were; see native/runtime/acceptance.h."""

    def __init__(self, after: Acceptance | None = None) -> None:
        """after: of earlier texts, where these begin at the weight of a few drafts."""
        native = lib.pymtp_acceptance_init(after.native if after else ffi.NULL)
        self.native: Any = ffi.gc(native, lib.pymtp_acceptance_free)

    def observe(self, told: int, right: int, untold: Sequence[float] = (), tokens: int | None = None) -> None:
        """A round: of the drafts that the target told of, the first `right` were right. untold: how likely each draft
        after them was right, if the one before it was. tokens: by which what was seen before weighs less; None for
        those that came."""
        fades = 1 + right if tokens is None else tokens
        lib.pymtp_acceptance_observe(self.native, told, right, untold, len(untold), fades)

    def rates(self, n: int, right: float = 0.0) -> list[float]:
        """Of the first n drafts. right: so many right drafts are imagined, for how good it may turn out."""
        rates = ffi.new("double[]", n)
        lib.pymtp_acceptance_rates(self.native, n, right, rates)
        return list(rates)


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
    lib.pymtp_expected_round_tokens(rates, len(rates), tokens)
    return list(tokens)
