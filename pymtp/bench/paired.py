"""A bench of paired measurements: it measures all arms of a group one right after the other, group after group.

An arm is one of the compared variants, such as a number of drafts. Ratios are computed only within a group, so that a
change of the machine's speed affects all arms alike.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pymtp.errors import NativeError


@dataclass(frozen=True)
class Group:
    """A group of arms that are compared with each other.

    round: index of the bench round.
    cell: what all arms have in common, such as the size of the prompt; each bench says what it is.
    arms: the arms in the order in which they are measured.
    """

    round: int
    cell: tuple[Any, ...]
    arms: tuple[str, ...]


M = TypeVar("M")
T = TypeVar("T")


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

    def plan(self, arms: Sequence[str], cells: Sequence[tuple[Any, ...]] = ((),)) -> list[Group]:
        """List all groups of a bench in the order in which they are measured. cells: those of a bench round."""
        return [
            Group(turn, cell, balanced_order(arms, turn + i))
            for turn in range(self.rounds)
            for i, cell in enumerate(cells)
        ]


def balanced_order(items: Sequence[T], turn: int) -> tuple[T, ...]:
    """Return the items in an order that depends on `turn`, so that no position favours one of them.

    Let n be the number of items. Over n successive turns, each item is once at each of the n positions. If n is even,
    each item is also once directly after each other item: Williams, "Experimental designs balanced for the estimation
    of residual effects of treatments" (1949).
    """
    zigzag = [(i + 1) // 2 * (-1 if i % 2 == 0 else 1) for i in range(len(items))]  # 0 1 -1 2 …
    return tuple(items[(turn + step) % len(items)] for step in zigzag)


@dataclass
class PairedBench(Generic[M]):
    """A bench of paired measurements. `measurements` and `failed` keep the results if `run` is interrupted.

    measure: measures one arm of a group. If it raises NativeError, the bench continues with the next arm.
    on_start: called before each measurement with the group, the arm, and the estimated seconds until the bench ends
        (None before the first measurement).
    on_done: called after each measurement that did not fail.
    on_step: called during a long measurement with words on what it does.
    estimate: estimates the seconds of an arm of a group from the finished measurements; None if all take the same time.
    name: names a failed arm of a group.
    fields: further fields of the report.
    failed: number of failed measurements, by "NAME: ERROR".
    """

    groups: Sequence[Group]
    measure: Callable[[Group, str], M]
    on_start: Callable[[Group, str, float | None], object] = lambda group, arm, left: None
    on_done: Callable[[M], object] = lambda measurement: None
    on_step: Callable[[str], object] = lambda step: None
    clock: Callable[[], float] = time.perf_counter
    estimate: Callable[[Sequence[M], Group, str], float] | None = None
    name: Callable[[Group, str], str] = lambda group, arm: arm
    fields: dict[str, Any] = field(default_factory=dict)
    measurements: list[M] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def left_out(self) -> list[str]:
        """Return a line for each different failure."""
        return [f"{failure} ({n} times)" for failure, n in self.failed.items()]

    def run(self) -> None:
        """Measure all groups."""
        started = self.clock()
        planned = [(group, arm) for group in self.groups for arm in group.arms]
        for i, (group, arm) in enumerate(planned):
            if self.estimate is None:
                seconds_left = (self.clock() - started) / i * (len(planned) - i) if i else None
            else:
                seconds_left = sum(self.estimate(self.measurements, *later) for later in planned[i:]) if i else None
            self.on_start(group, arm, seconds_left)
            try:
                measurement = self.measure(group, arm)
            except NativeError as error:  # e.g. too little memory: other arms may need less, so the bench goes on
                self.failed[f"{self.name(group, arm)}: {error}"] += 1
                continue
            self.measurements.append(measurement)
            self.on_done(measurement)
