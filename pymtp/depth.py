"""How many drafts next: as many as were asked for, or as bring the most tokens a second.

Nothing here looks at a clock or draws a random number: the same rounds lead to the same depths.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from pymtp.exclusive import refuse_copies
from pymtp.native import ffi, lib

# The most drafts of "auto". Up to eight rows have kernels of their own, CUDA's MMVQ and those for AMX here;
# the ninth falls off a cliff there.
MAX_AUTO = 7


class Depth(Protocol):
    """Chooses the depth of each round, and hears what came of it."""

    def choose(self, room: int, n_past: int) -> int:
        """The drafts to make now. room: the most that can be used. n_past: tokens that the context holds."""
        ...

    def keep(self, confidences: Sequence[float]) -> int:
        """How many of the drafts just made to verify. confidences: the head's probability of each."""
        ...

    def observe(
        self,
        drafted: int,
        verified: int,
        right: int,
        draft_seconds: float,
        verify_seconds: float,
        confidences: Sequence[float],
    ) -> None:
        """What came of a round: drafts made and verified, and what both phases took.

        right: the drafts before the first wrong one, as far as the target told: where all that were verified are right,
            it told of the one after them too.
        """
        ...


class FixedDepth:
    """The same depth every round, as far as there is room."""

    def __init__(self, n: int) -> None:
        self._n = n

    def choose(self, room: int, n_past: int) -> int:
        n = self._n if self._n < room else room
        return n if n > 0 else 0

    def keep(self, confidences: Sequence[float]) -> int:
        return len(confidences)

    def observe(self, *_: object) -> None:
        """Nothing that comes of a round changes it."""


class Costs:
    """What drafting and verifying take on this machine, for one model in one context: measured before the first round,
    then learnt from the rounds themselves. Outlives the requests.

    lock: held by each call that uses `native`, or an AutoDepth over it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.native: Any = ffi.gc(lib.pymtp_costs_init(), lib.pymtp_costs_free)

    def begin(self, verify: Mapping[int, float], draft: Mapping[int, float]) -> None:
        """Seconds that were measured before the first round: of verifications by their rows, of chains by their steps.
        Rounds correct them."""
        with self.lock:
            for rows, seconds in verify.items():
                lib.pymtp_costs_begin_verify(self.native, rows, seconds)
            for steps, seconds in draft.items():
                lib.pymtp_costs_begin_draft(self.native, steps, seconds)

    def observe(
        self, n_past: int, drafted: int, draft_seconds: float, rows: int, verify_seconds: float, run: int
    ) -> None:
        """A round: a chain of `drafted` steps and a verification of so many rows, after n_past tokens. run: rounds of
        as many right before."""
        with self.lock:
            lib.pymtp_costs_observe(self.native, n_past, drafted, draft_seconds, rows, verify_seconds, run)

    def verify_seconds(self, rows: int, n_past: int = 0) -> float:
        """The estimate for a verification of so many rows; infinite before anything was timed."""
        with self.lock:
            return float(lib.pymtp_costs_verify(self.native, rows, n_past))

    def draft_seconds(self, n: int, n_past: int = 0) -> float:
        """The estimate for a chain of n steps."""
        with self.lock:
            return float(lib.pymtp_costs_draft(self.native, n, n_past)) if n else 0.0

    def rounds(self, top: int, n_past: int = 0) -> tuple[list[float], list[float]]:
        """The estimates for rounds at depths 0 to top, and the least that they may turn out."""
        likely, least = ffi.new("double[]", 1 + top), ffi.new("double[]", 1 + top)
        with self.lock:
            lib.pymtp_costs_rounds(self.native, top, n_past, likely, least)
        return list(likely), list(least)

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


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

    def step_seconds(self, n_seqs: int, n_past: int) -> float:
        """The estimate for one step of a chain of so many sequences."""
        return float(lib.pymtp_batch_costs_step(self.native, n_seqs, n_past))

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


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

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


class AutoDepth:
    """The depth that brings the most tokens a second, for one sequence; see native/runtime/depth.h. In C++, for it is
    asked and told each round, and rounds of small models take a few hundred microseconds."""

    def __init__(self, costs: Costs, most: int = MAX_AUTO, *, after: AutoDepth | None = None) -> None:
        """
        costs: of the model and its context, shared by all sequences.
        most: the most tokens to draft a round.
        after: an earlier sequence, which this one may resemble at first.
        """
        self._costs = costs  # must live as long
        with (after._costs if after else costs).lock:
            native = lib.pymtp_depth_init(costs.native, most, after.native if after else ffi.NULL)
        self.native: Any = ffi.gc(native, lib.pymtp_depth_free)

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)

    def choose(self, room: int, n_past: int) -> int:
        """The depth of the next round. room: the most drafts allowed now. n_past: tokens that the context holds."""
        with self._costs.lock:
            return int(lib.pymtp_depth_choose(self.native, room, n_past))

    def rates(self, n: int) -> list[float]:
        """How likely each of the first n drafts is accepted, where those before it were."""
        found = ffi.new("double[]", n)
        with self._costs.lock:
            lib.pymtp_acceptance_rates(lib.pymtp_depth_acceptance(self.native), n, 0.0, found)
        return list(found)

    def observe_company(self, drafted: int, told: int, right: int) -> None:
        """What came of a round that several sequences shared: drafts made, those that the target told of, and those of
        them before the first wrong one. What the round took tells nothing of rounds of one."""
        untold = self.rates(drafted)[told:] if told < drafted else []
        with self._costs.lock:
            acceptance = lib.pymtp_depth_acceptance(self.native)
            lib.pymtp_acceptance_observe(acceptance, told, right, untold, len(untold), 1 + right)

    def keep(self, confidences: Sequence[float]) -> int:
        """How many of the drafts just made to verify. confidences: the head's probability of each."""
        with self._costs.lock:
            return int(lib.pymtp_depth_keep(self.native, confidences, len(confidences)))

    def observe(
        self,
        drafted: int,
        verified: int,
        right: int,
        draft_seconds: float,
        verify_seconds: float,
        confidences: Sequence[float],
    ) -> None:
        """What came of a round: how many drafts were made, verified and, as far as is known, right, what both took, and
        the head's probability of each draft made, or nothing where that is not known."""
        with self._costs.lock:
            lib.pymtp_depth_observe(
                self.native, drafted, verified, right, draft_seconds, verify_seconds, confidences, len(confidences)
            )
