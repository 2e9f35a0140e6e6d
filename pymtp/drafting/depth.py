"""The draft depth of each round: a fixed number of drafts, or the number that yields the most tokens/s.

Nothing here reads a clock or uses random numbers: the same rounds lead to the same depths.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from pymtp.native import ffi, lib
from pymtp.native.cores import control_groups
from pymtp.native.process import refuse_copies

# The maximum depth of "auto". Verifications of up to eight rows have kernels of their own (CUDA's MMVQ, pymtp's for
# AMX); where these are used, a ninth row costs far more than the others.
MAX_AUTO = 7


class RoundTime(NamedTuple):
    """The seconds of a round, and how much longer it takes as the first of several such rounds in a row."""

    draft: float
    verify: float
    draft_first: float = 0.0
    verify_first: float = 0.0


# Maps (number of sequences, drafts of each) to the time of such a round.
RoundSeconds = Mapping[tuple[int, int], RoundTime]


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
    ) -> None:
        """Learn from a round.

        drafted, verified: the number of drafts that were made, and the number of drafts that were verified.
        n_correct: the number of drafts before the first wrong one. It is verified + 1 if all verified drafts are
            correct, and the target's next token equals the first draft that was not verified.
        draft_seconds, verify_seconds: the seconds that drafting and verification took.
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
    """The estimated seconds of rounds on this machine, for one model in one context, see native/runtime/costs.h.

    They are measured before the first round and then updated by each round. All requests share them.
    """

    def __init__(self) -> None:
        self.native: Any = ffi.gc(lib.pymtp_costs_init(), lib.pymtp_costs_free)

    def begin(self, measured: RoundSeconds) -> None:
        """Set the seconds of rounds that were measured before the first round; later rounds correct them."""
        for (n_seqs, drafted), time in measured.items():
            lib.pymtp_costs_seed(self.native, n_seqs, drafted, *time)

    def doubt(self) -> None:
        """Let the next rounds replace the costs. Must be called when rounds take a different time from now on."""
        lib.pymtp_costs_doubt(self.native)

    def observe(self, n_seqs: int, drafted: int, draft_seconds: float, verified: int, verify_seconds: float) -> None:
        """Learn from a round of n_seqs sequences, with `drafted` drafts of each, of which `verified` were verified."""
        lib.pymtp_costs_observe(self.native, n_seqs, drafted, draft_seconds, verified, verify_seconds)

    def rounds(self, n_seqs: int, top: int) -> list[float]:
        """Return the estimated seconds of rounds at the depths 0 to `top`; infinite before the first measurement."""
        seconds = ffi.new("double[]", 1 + top)
        known = lib.pymtp_costs_rounds(self.native, n_seqs, top, seconds)
        return list(seconds) if known else [math.inf] * (1 + top)

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


class Acceptance:
    """The memory of accepted drafts: of one sequence, or the prior of several, see native/runtime/acceptance.h."""

    def __init__(self, prior: Acceptance | None = None) -> None:
        """Make an empty memory. prior: the memory that the sequence shares with others; None: this is a prior."""
        self._prior = prior  # keeps prior.native alive
        self.native: Any = ffi.gc(
            lib.pymtp_acceptance_init(prior.native if prior else ffi.NULL), lib.pymtp_acceptance_free
        )

    def observe(self, judged: int, n_correct: int, n_tokens: int, unjudged: Sequence[float] = ()) -> None:
        """Learn from a round, here and in the prior.

        judged, n_correct: the number of drafts that the target's tokens showed to be correct or wrong, and the number
            of judged drafts before the first wrong one.
        n_tokens: the number of new tokens.
        unjudged: for each draft after the judged ones, the probability that it was correct if those before it were.
        """
        lib.pymtp_acceptance_observe(self.native, judged, n_correct, unjudged, len(unjudged), n_tokens)

    def rates(self, n: int) -> list[float]:
        """Return the estimated acceptance of each of the first n drafts, if those before it are accepted."""
        rates = ffi.new("double[]", n)
        lib.pymtp_acceptance_rates(self.native, n, rates)
        return list(rates)

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


class AutoDepth:
    """The policy of "auto": the common depth of all sequences of a round that yields the most tokens/s of all together.

    It is written in C++ because it is called in each round, and a round of a small model takes only a few hundred
    microseconds, see native/runtime/depth.h.
    """

    def __init__(self, costs: RoundCosts, max_depth: int = MAX_AUTO) -> None:
        """Make the policy of a context.

        costs: the costs of rounds in this context.
        max_depth: the maximum number of drafts of a sequence in a round.
        """
        self._costs, self._max_depth = costs, max_depth  # keeps costs.native alive
        self.native: Any = ffi.gc(lib.pymtp_depth_init(costs.native), lib.pymtp_depth_free)
        # Acceptance depends on the temperature
        self._priors: dict[float, Acceptance] = {}

    def add_sequence(self, temperature: float) -> SequenceDepth:
        """Return the policy of a new sequence, which expects the acceptance of earlier ones at its temperature."""
        prior = self._priors.setdefault(min(2.0, round(temperature, 1)), Acceptance())
        return SequenceDepth(self, Acceptance(prior))

    def choose(self, sequences: Sequence[SequenceDepth], limits: Sequence[int], top: int, n_idle: int = 0) -> int:
        """Return the number of drafts for each sequence of the next round, at most `top`.

        limits: the most drafts that the sequence can use, for each sequence.
        n_idle: the number of rounds since the last `observe` that were made without asking, see `idle_rounds`.
        """
        natives = [sequence.acceptance.native for sequence in sequences]
        return int(
            lib.pymtp_depth_choose(self.native, len(natives), natives, limits, min(top, self._max_depth), n_idle)
        )

    def idle_rounds(self) -> int:
        """Return for how many of the next rounds of the same sequences `choose` and `observe` need not be called.

        These rounds make no drafts.
        """
        return int(lib.pymtp_depth_idle_rounds(self.native))

    def n_to_verify(self, sequences: Sequence[SequenceDepth], made: int, confidences: Sequence[float]) -> int:
        """Return how many of the `made` drafts of each sequence to verify in this round.

        confidences: the head's probability of each draft, `made` for each sequence.
        """
        natives = [sequence.acceptance.native for sequence in sequences]
        return int(lib.pymtp_depth_n_to_verify(self.native, len(natives), natives, made, confidences))

    def observe(
        self,
        sequences: Sequence[SequenceDepth],
        judged: Sequence[int],
        n_correct: Sequence[int],
        n_tokens: Sequence[int],
        drafted: int,
        draft_seconds: float,
        verified: int,
        verify_seconds: float,
    ) -> None:
        """Learn from the round whose depth was chosen last.

        judged, n_correct, n_tokens: as for `Acceptance.observe`, for each sequence.
        drafted, verified: the number of drafts that were made, and that were verified, for each sequence.
        draft_seconds, verify_seconds: the seconds that drafting and verification took.
        """
        natives = [sequence.acceptance.native for sequence in sequences]
        lib.pymtp_depth_observe(
            self.native,
            len(natives),
            natives,
            judged,
            n_correct,
            n_tokens,
            drafted,
            draft_seconds,
            verified,
            verify_seconds,
        )

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


class SequenceDepth:
    """The share of one sequence in an AutoDepth; by itself, the policy of rounds of this sequence alone."""

    def __init__(self, policy: AutoDepth, acceptance: Acceptance) -> None:
        self.policy, self.acceptance = policy, acceptance

    def choose(self, room: int, n_past: int) -> int:
        """Return the depth of the next round, see `DepthPolicy.choose`."""
        return self.policy.choose([self], [room], room)

    def n_to_verify(self, confidences: Sequence[float]) -> int:
        """Return how many of the last drafts to verify, see `DepthPolicy.n_to_verify`."""
        return self.policy.n_to_verify([self], len(confidences), confidences)

    def observe(
        self,
        drafted: int,
        verified: int,
        n_correct: int,
        draft_seconds: float,
        verify_seconds: float,
    ) -> None:
        """Learn from a round, see `DepthPolicy.observe`."""
        judged = min(drafted, verified + (n_correct >= verified))
        self.policy.observe(
            [self],
            [judged],
            [min(n_correct, judged)],
            [1 + min(n_correct, verified)],
            drafted,
            draft_seconds,
            verified,
            verify_seconds,
        )
