"""How many drafts next: as many as were asked for, or as bring the most tokens a second.

Nothing here looks at a clock or draws a random number: the same rounds lead to the same depths.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from pymtp.native import ffi, lib
from pymtp.native.cores import control_groups
from pymtp.native.locking import refuse_copies

# The most drafts of "auto". Up to eight rows have kernels of their own, CUDA's MMVQ and those for AMX here;
# the ninth falls off a cliff there.
MAX_AUTO = 7


# seconds of the drafts and of the verification, by the number of sequences and the drafts of each
FirstRounds = Mapping[tuple[int, int], tuple[float, float]]


def thread_changes() -> int:
    """Count how often other programs have taken threads away, or given them back, so far."""
    return int(lib.pymtp_thread_count_changes())


def thread_trials() -> int:
    """Count the graphs that this thread had computed with another number of threads so far, to see whether that is
    faster."""
    return int(lib.pymtp_thread_count_trials())


def watch_quotas() -> None:
    """Have the threads that compute heed the bounds on processor time of this process's control groups, as they are
    now and when they change."""
    for folder in control_groups():
        lib.pymtp_watch_cpu_quota(os.fsencode(folder))


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
                lib.pymtp_costs_seed_verify(self.native, rows, seconds)
            for steps, seconds in draft.items():
                lib.pymtp_costs_seed_draft(self.native, steps, seconds)

    def forget(self) -> None:
        """Forget all: rounds have other costs from now on."""
        with self.lock:
            lib.pymtp_costs_reset(self.native)

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
            lib.pymtp_depth_rates(self.native, n, found)
        return list(found)

    def keep(self, confidences: Sequence[float]) -> int:
        """How many of the drafts just made to verify. confidences: the head's probability of each."""
        with self._costs.lock:
            return int(lib.pymtp_depth_n_to_verify(self.native, confidences, len(confidences)))

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


class SharedDepth:
    """The depth that brings the most tokens a second to all sequences of a round together; see
    native/runtime/batch_depth.h."""

    def __init__(self, costs: Costs, first: FirstRounds) -> None:
        """costs: of rounds of one sequence, which those of several begin with. first: rounds that were timed before."""
        self._costs = costs
        with costs.lock:
            native = lib.pymtp_batch_depth_init(costs.native)
        self.native: Any = ffi.gc(native, lib.pymtp_batch_depth_free)
        for (n, drafted), (draft_seconds, verify_seconds) in first.items():
            lib.pymtp_batch_depth_seed(self.native, n, drafted, draft_seconds, verify_seconds)

    def forget(self) -> None:
        """Forget the costs of rounds."""
        lib.pymtp_batch_depth_reset_costs(self.native)

    def choose(self, rooms: Sequence[int], n_past: int, top: int, opened: int) -> int:
        """The drafts that each sequence is to make, `top` at most. rooms: the drafts that each can use. n_past: tokens
        that each holds, on average. opened: so many of them were not there before."""
        return int(lib.pymtp_batch_depth_choose(self.native, len(rooms), rooms, n_past, top, opened))

    def keep(self, made: int) -> int:
        """How many of the drafts just made to verify."""
        return int(lib.pymtp_batch_depth_n_to_verify(self.native, made))

    def observe(
        self,
        own: Sequence[Depth],
        told: Sequence[int],
        right: Sequence[int],
        came: Sequence[int],
        n_past: int,
        drafted: int,
        draft_seconds: float,
        verify_seconds: float,
    ) -> None:
        """What came of the round that was chosen last. Of each sequence, own: its depth for rounds by itself, which
        hears of its drafts too. told, right: of its drafts, those that the target told of, and those of them before the
        first wrong one. came: its tokens."""
        with self._costs.lock:
            lib.pymtp_batch_depth_observe(
                self.native,
                len(own),
                [depth.native if isinstance(depth, AutoDepth) else ffi.NULL for depth in own],
                told,
                right,
                came,
                n_past,
                drafted,
                draft_seconds,
                verify_seconds,
            )

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)
