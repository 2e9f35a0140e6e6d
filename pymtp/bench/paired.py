"""A bench of paired measurements: it measures all arms of a group one right after the other, group after group.

An arm is one of the compared variants, such as a number of drafts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pymtp.errors import NativeError


class ComparedGroup(Protocol):
    """A group of arms that are compared with each other."""

    @property
    def arms(self) -> tuple[str, ...]: ...


G = TypeVar("G", bound=ComparedGroup)
M = TypeVar("M")


@dataclass
class PairedBench(Generic[G, M]):
    """A bench of paired measurements. `measurements` and `failed` keep the results if `run` is interrupted.

    measure: measures one arm of a group. If it raises NativeError, the bench continues with the next arm.
    on_start: called before each measurement with the group, the arm, and the estimated seconds until the bench ends
        (None before the first measurement).
    on_done: called after each measurement that did not fail.
    failed: number of failed measurements, by "ARM: ERROR".
    """

    groups: Sequence[G]
    measure: Callable[[G, str], M]
    on_start: Callable[[G, str, float | None], object] = lambda group, arm, left: None
    on_done: Callable[[M], object] = lambda measurement: None
    clock: Callable[[], float] = time.perf_counter
    measurements: list[M] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def left_out(self) -> list[str]:
        """Return a line for each different failure: the arm, the error, and how often it occurred."""
        return [f"{failure} ({n} times)" for failure, n in self.failed.items()]

    def run(self) -> None:
        """Measure all groups."""
        planned = [(group, arm) for group in self.groups for arm in group.arms]
        started = self.clock()
        for i, (group, arm) in enumerate(planned):
            seconds_left = (self.clock() - started) / i * (len(planned) - i) if i else None
            self.on_start(group, arm, seconds_left)
            try:
                measurement = self.measure(group, arm)
            except NativeError as error:  # e.g. too little memory: other arms may need less, so the bench goes on
                self.failed[f"{arm}: {error}"] += 1
                continue
            self.measurements.append(measurement)
            self.on_done(measurement)
