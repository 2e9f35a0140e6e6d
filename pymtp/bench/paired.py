"""How a bench runs what it compares: group after group, and within a group all arms, one right after the other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pymtp.errors import NativeError


class Arms(Protocol):
    """A group: what is compared with each other."""

    @property
    def arms(self) -> tuple[str, ...]: ...


G = TypeVar("G", bound=Arms)
M = TypeVar("M")


@dataclass
class PairedBench(Generic[G, M]):
    """A run. However it ends, what is done is in `measurements`; `failed` says what went wrong.

    measure: measures one arm of a group. What it fails by as a NativeError leaves the others as they are.
    on_start: called before each measurement with its group, its arm and the seconds left (None: not known yet).
    on_done: called after each that came to its end.
    """

    groups: Sequence[G]
    measure: Callable[[G, str], M]
    on_start: Callable[[G, str, float | None], object] = lambda group, arm, left: None
    on_done: Callable[[M], object] = lambda measurement: None
    clock: Callable[[], float] = time.perf_counter
    measurements: list[M] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)  # by arm and error

    @property
    def left_out(self) -> list[str]:
        """A line for each arm that failed, and how."""
        return [f"{what} ({n} times)" for what, n in self.failed.items()]

    def run(self) -> None:
        """Measures all groups."""
        planned = [(group, arm) for group in self.groups for arm in group.arms]
        started = self.clock()
        for i, (group, arm) in enumerate(planned):
            left = (self.clock() - started) / i * (len(planned) - i) if i else None
            self.on_start(group, arm, left)
            try:
                measurement = self.measure(group, arm)
            except NativeError as error:  # memory that is not there: other arms may still do
                self.failed[f"{arm}: {error}"] += 1
                continue
            self.measurements.append(measurement)
            self.on_done(measurement)
