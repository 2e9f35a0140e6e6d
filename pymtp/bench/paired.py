"""A bench of paired measurements: it measures all arms of a group one right after the other, group after group.

An arm is one of the compared variants, such as a number of drafts. Ratios are computed only within a group, so that a
change of the machine's speed affects all arms alike.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pymtp.bench.order import balanced_order
from pymtp.errors import NativeError


class ComparedGroup(Protocol):
    """A group of arms that are compared with each other."""

    @property
    def arms(self) -> tuple[str, ...]: ...


G = TypeVar("G", bound=ComparedGroup)
M = TypeVar("M")


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """The settings that all benches have.

    model: name of the model, for the report.
    rounds: number of measurements of each arm in each kind of group.
    placing: further keywords of Model.
    """

    model: str
    rounds: int
    threads: int
    gpu_layers: int
    cache_type: str
    placing: dict[str, Any] = field(default_factory=dict)

    @property
    def keywords(self) -> dict[str, Any]:
        """Return the keywords of LLM and Context that all benches set."""
        return {"n_threads": self.threads, "type_k": self.cache_type, "type_v": self.cache_type}

    def plan(self, group: Callable[..., G], arms: Sequence[str], cells: Sequence[tuple[Any, ...]] = ((),)) -> list[G]:
        """List all groups in the order in which they are measured.

        group: makes a group from its bench round, the fields of a cell, and its arms in a balanced order.
        cells: fields of the groups of a bench round.
        """
        return [
            group(turn, *cell, balanced_order(arms, turn + i))
            for turn in range(self.rounds)
            for i, cell in enumerate(cells)
        ]


@dataclass
class PairedBench(Generic[G, M]):
    """A bench of paired measurements. `measurements`, `late` and `failed` keep the results if `run` is interrupted.

    measure: measures one arm of a group. If it raises NativeError, the bench continues with the next arm.
    on_start: called before each measurement with the group, the arm, and the estimated seconds until the bench ends
        (None before the first measurement).
    on_done: called after each measurement that did not fail.
    estimate: estimates the seconds of an arm of a group from the finished measurements; None if all take the same time.
    time_budget: most seconds that the bench takes; groups that would end later are left out. None for no limit.
    name: names a failed arm of a group, or a group that was left out, for which the arm is None.
    fields: further fields of the report.
    failed: number of failed measurements, by "NAME: ERROR".
    late: number of groups that were left out because of the time budget, by name.
    """

    groups: Sequence[G]
    measure: Callable[[G, str], M]
    on_start: Callable[[G, str, float | None], object] = lambda group, arm, left: None
    on_done: Callable[[M], object] = lambda measurement: None
    clock: Callable[[], float] = time.perf_counter
    estimate: Callable[[Sequence[M], G, str], float] | None = None
    time_budget: float | None = None
    name: Callable[[G, str | None], str] = lambda group, arm: arm or "groups"
    fields: dict[str, Any] = field(default_factory=dict)
    measurements: list[M] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)

    @property
    def left_out(self) -> list[str]:
        """Return a line for each name of groups without time, and one for each different failure."""
        planned = Counter(self.name(group, None) for group in self.groups)
        late = [f"{name}: no time for {n} of {planned[name]} comparisons" for name, n in self.late.items()]
        return late + [f"{failure} ({n} times)" for failure, n in self.failed.items()]

    def run(self) -> None:
        """Measure all groups that fit into the time budget."""
        started, n_started = self.clock(), 0
        n_left = sum(len(group.arms) for group in self.groups)
        for i, group in enumerate(self.groups):
            if self.time_budget is not None:
                end = self.clock() - started + self._estimate([(group, group.arms)])
                if end > self.time_budget:
                    self.late[self.name(group, None)] += 1
                    n_left -= len(group.arms)
                    continue
            for j, arm in enumerate(group.arms):
                spent = self.clock() - started
                if self.estimate is None:
                    seconds_left = spent / n_started * n_left if n_started else 0.0
                else:
                    later = ((other, other.arms) for other in self.groups[i + 1 :])
                    seconds_left = self._estimate([(group, group.arms[j:]), *later])
                if self.time_budget is not None:
                    seconds_left = min(seconds_left, self.time_budget - spent)
                self.on_start(group, arm, seconds_left if n_started else None)
                n_started, n_left = n_started + 1, n_left - 1
                try:
                    measurement = self.measure(group, arm)
                except NativeError as error:  # e.g. too little memory: other arms may need less, so the bench goes on
                    self.failed[f"{self.name(group, arm)}: {error}"] += 1
                    continue
                self.measurements.append(measurement)
                self.on_done(measurement)

    def _estimate(self, parts: Sequence[tuple[G, Sequence[str]]]) -> float:
        """Estimate the seconds of some arms of groups; 0 without an estimator."""
        if self.estimate is None:
            return 0.0
        return sum(self.estimate(self.measurements, group, arm) for group, arms in parts for arm in arms)
