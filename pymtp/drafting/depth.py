"""The draft depth of each round: a fixed number of drafts, or the number that yields the most tokens/s.

Nothing here reads a clock or uses random numbers: the same rounds lead to the same depths.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from pymtp.native import ffi, lib
from pymtp.native.cores import control_groups
from pymtp.native.process import refuse_copies

# The maximum depth of "auto". Verifications of up to eight rows have kernels of their own (CUDA's MMVQ, pymtp's for
# AMX); where these are used, a ninth row costs far more than the others.
MAX_AUTO = 7


# Maps (number of sequences, drafts of each) to (seconds of the drafts, seconds of the verification).
BatchRoundSeconds = Mapping[tuple[int, int], tuple[float, float]]


def thread_changes() -> int:
    """Return how often the number of threads changed so far because other programs took or freed processors."""
    return int(lib.pymtp_thread_count_changes())


def thread_trials() -> int:
    """Return how many graphs this thread computed so far with a number of threads on trial, to find the fastest."""
    return int(lib.pymtp_thread_count_trials())


def watch_quotas() -> None:
    """Make the compute threads respect the CPU quotas of this process's control groups, also after these change."""
    for folder in control_groups():
        lib.pymtp_watch_cpu_quota(os.fsencode(folder))


class DepthPolicy(Protocol):
    """A policy that chooses the draft depth of each round, and learns from the result of the round."""

    def choose(self, room: int, n_past: int) -> int:
        """Return the number of drafts to make now.

        room: the maximum number of drafts.
        n_past: the number of tokens in the sequence.
        """
        ...

    def n_to_verify(self, confidences: Sequence[float]) -> int:
        """Return how many of the last drafts to verify. confidences: the head's probability of each draft."""
        ...

    def observe(
        self,
        drafted: int,
        verified: int,
        n_correct: int,
        draft_seconds: float,
        verify_seconds: float,
        confidences: Sequence[float],
    ) -> None:
        """Learn from a round.

        drafted, verified: the number of drafts that were made, and the number of drafts that were verified.
        n_correct: the number of drafts before the first wrong one. It is verified + 1 if all verified drafts are
            correct, and the target's next token equals the first draft that was not verified.
        draft_seconds, verify_seconds: the seconds that drafting and verification took.
        confidences: the head's probability of each draft; may be empty.
        """
        ...


class FixedDepth:
    """A policy that chooses the same depth in every round, or the maximum where that is lower."""

    def __init__(self, n: int) -> None:
        self._n = n

    def choose(self, room: int, n_past: int) -> int:
        n = self._n if self._n < room else room
        return n if n > 0 else 0

    def n_to_verify(self, confidences: Sequence[float]) -> int:
        return len(confidences)

    def observe(self, *_: object) -> None:
        """Ignore the result of a round."""


class RoundCosts:
    """The estimated seconds of drafting and verifying on this machine, for one model in one context.

    They are measured before the first round and then updated by each round. All requests share them.

    lock: must be held during each call that uses `native`, or that uses an AutoDepth with these costs.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.native: Any = ffi.gc(lib.pymtp_costs_init(), lib.pymtp_costs_free)

    def begin(self, verify: Mapping[int, float], draft: Mapping[int, float]) -> None:
        """Set the seconds that were measured before the first round; rounds correct them.

        verify: seconds of a verification, by its number of rows.
        draft: seconds of a draft chain, by its number of steps.
        """
        with self.lock:
            for rows, seconds in verify.items():
                lib.pymtp_costs_seed_verify(self.native, rows, seconds)
            for steps, seconds in draft.items():
                lib.pymtp_costs_seed_draft(self.native, steps, seconds)

    def forget(self) -> None:
        """Discard all costs. Must be called when rounds take a different time from now on."""
        with self.lock:
            lib.pymtp_costs_reset(self.native)

    def observe(
        self, n_past: int, drafted: int, draft_seconds: float, rows: int, verify_seconds: float, repeats: int
    ) -> None:
        """Learn from a round: a chain of `drafted` steps and a verification of `rows` rows after n_past tokens.

        repeats: the number of rounds with the same `drafted` and `rows` directly before this one.
        """
        with self.lock:
            lib.pymtp_costs_observe(self.native, n_past, drafted, draft_seconds, rows, verify_seconds, repeats)

    def verify_seconds(self, rows: int, n_past: int = 0) -> float:
        """Return the estimated seconds of a verification of `rows` rows; infinite before the first measurement."""
        with self.lock:
            return float(lib.pymtp_costs_verify(self.native, rows, n_past))

    def draft_seconds(self, n: int, n_past: int = 0) -> float:
        """Return the estimated seconds of a draft chain of n steps."""
        with self.lock:
            return float(lib.pymtp_costs_draft(self.native, n, n_past)) if n else 0.0

    def rounds(self, top: int, n_past: int = 0) -> tuple[list[float], list[float]]:
        """Return the estimated seconds of rounds at the depths 0 to `top`, and a lower bound for each."""
        estimates, lower_bounds = ffi.new("double[]", 1 + top), ffi.new("double[]", 1 + top)
        with self.lock:
            lib.pymtp_costs_rounds(self.native, top, n_past, estimates, lower_bounds)
        return list(estimates), list(lower_bounds)

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


class AutoDepth:
    """The policy of "auto" for one sequence: the depth that yields the most tokens/s, see native/runtime/depth.h.

    It is written in C++ because it is called in each round, and a round of a small model takes only a few hundred
    microseconds.
    """

    def __init__(self, costs: RoundCosts, max_depth: int = MAX_AUTO, *, after: AutoDepth | None = None) -> None:
        """
        Make the policy of a new sequence.

        costs: the costs of rounds in this context, shared by all sequences.
        max_depth: the maximum number of drafts in a round.
        after: the policy of an earlier sequence; its acceptance rates are the first guess for this one.
        """
        self._costs = costs  # keeps costs.native alive
        with (after._costs if after else costs).lock:
            native = lib.pymtp_depth_init(costs.native, max_depth, after.native if after else ffi.NULL)
        self.native: Any = ffi.gc(native, lib.pymtp_depth_free)

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)

    def choose(self, room: int, n_past: int) -> int:
        """Return the depth of the next round, see `DepthPolicy.choose`."""
        with self._costs.lock:
            return int(lib.pymtp_depth_choose(self.native, room, n_past))

    def rates(self, n: int) -> list[float]:
        """Return the estimated acceptance of each of the first n drafts, if those before it are accepted."""
        rates = ffi.new("double[]", n)
        with self._costs.lock:
            lib.pymtp_depth_rates(self.native, n, rates)
        return list(rates)

    def n_to_verify(self, confidences: Sequence[float]) -> int:
        """Return how many of the last drafts to verify. confidences: the head's probability of each draft."""
        with self._costs.lock:
            return int(lib.pymtp_depth_n_to_verify(self.native, confidences, len(confidences)))

    def observe(
        self,
        drafted: int,
        verified: int,
        n_correct: int,
        draft_seconds: float,
        verify_seconds: float,
        confidences: Sequence[float],
    ) -> None:
        """Learn from a round, see `DepthPolicy.observe`."""
        with self._costs.lock:
            lib.pymtp_depth_observe(
                self.native, drafted, verified, n_correct, draft_seconds, verify_seconds, confidences, len(confidences)
            )


class SharedDepth:
    """The policy of "auto" for several sequences: the common depth that yields the most tokens/s for all together.

    See native/runtime/batch_depth.h.
    """

    def __init__(self, costs: RoundCosts, first: BatchRoundSeconds) -> None:
        """
        Make the policy.

        costs: the costs of rounds of one sequence, from which those of rounds of several sequences are first estimated.
        first: the times of rounds of several sequences that were measured before the first round.
        """
        self._costs = costs
        with costs.lock:
            native = lib.pymtp_batch_depth_init(costs.native)
        self.native: Any = ffi.gc(native, lib.pymtp_batch_depth_free)
        for (n, drafted), (draft_seconds, verify_seconds) in first.items():
            lib.pymtp_batch_depth_seed(self.native, n, drafted, draft_seconds, verify_seconds)

    def forget(self) -> None:
        """Discard the costs of rounds of several sequences."""
        lib.pymtp_batch_depth_reset_costs(self.native)

    def choose(self, rooms: Sequence[int], n_past: int, top: int, n_new: int) -> int:
        """Return the number of drafts for each sequence of the next round, at most `top`.

        rooms: the maximum number of drafts of each sequence.
        n_past: the mean number of tokens in the sequences.
        top: the maximum number of drafts of all sequences.
        n_new: the number of sequences that were not in the last round.
        """
        return int(lib.pymtp_batch_depth_choose(self.native, len(rooms), rooms, n_past, top, n_new))

    def n_to_verify(self, made: int) -> int:
        """Return how many of the `made` drafts of each sequence to verify in this round."""
        return int(lib.pymtp_batch_depth_n_to_verify(self.native, made))

    def observe(
        self,
        policies: Sequence[DepthPolicy],
        judged: Sequence[int],
        n_correct: Sequence[int],
        n_tokens: Sequence[int],
        n_past: int,
        drafted: int,
        draft_seconds: float,
        verify_seconds: float,
    ) -> None:
        """Learn from the round whose depth was chosen last. Each list has one item for each sequence.

        policies: the policy of each sequence for rounds of one sequence, which learns from this round's drafts, too.
        judged: the number of drafts that the target's tokens showed to be correct or wrong.
        n_correct: the number of judged drafts before the first wrong one.
        n_tokens: the number of new tokens.
        n_past: the mean number of tokens in the sequences.
        drafted: the number of drafts that were made for each sequence.
        draft_seconds, verify_seconds: the seconds that drafting and verification took.
        """
        with self._costs.lock:
            lib.pymtp_batch_depth_observe(
                self.native,
                len(policies),
                [depth.native if isinstance(depth, AutoDepth) else ffi.NULL for depth in policies],
                judged,
                n_correct,
                n_tokens,
                n_past,
                drafted,
                draft_seconds,
                verify_seconds,
            )

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)
